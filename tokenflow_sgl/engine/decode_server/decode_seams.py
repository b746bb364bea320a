"""The ledger's rows for the decode server of a disaggregated pair."""

from __future__ import annotations

from tokenflow_sgl.engine.seam import Seam

_LOOP = "sglang.srt.disaggregation.decode:SchedulerDisaggregationDecodeMixin"
_ARRIVING = "sglang.srt.disaggregation.decode:DecodePreallocQueue"
_KV = "sglang.srt.mem_cache.common"

DECODE_SERVER: tuple[Seam, ...] = (
    Seam(f"{_LOOP}.process_decode_queue", "override", "the decision point of a decode server"),
    Seam(
        f"{_LOOP}.get_next_disagg_decode_batch_to_run",
        "override",
        "times its steps",
        ("running_batch",),
    ),
    Seam(
        f"{_LOOP}.get_new_prebuilt_batch",
        "override",
        "streams whose KV has arrived run",
        ("running_batch",),
    ),
    Seam(
        f"{_ARRIVING}.resume_retracted_reqs",
        "call",
        "gives the paused streams that were chosen memory and their KV",
    ),
    Seam(
        f"{_ARRIVING}._resolve_pending_reqs",
        "call",
        "what is ready for its KV is known before SGLang sees only what was chosen",
    ),
    Seam(f"{_ARRIVING}._update_handshake_waiters", "call", "the same"),
    Seam(
        f"{_ARRIVING}.hold_rebootstrap",
        "call",
        "lets a prefill server compute KV that a pause of the engine dropped",
        ("req",),
    ),
    Seam(
        "sglang.srt.managers.schedule_batch:release_req",
        "call",
        "gives memory back whose KV is on the host",
        ("req", "remaing_req_count", "tree_cache", "offload_kv"),
    ),
    Seam(f"{_KV}:backup_kv_cache", "call", "copies a stream to the host", ("req", "backend")),
    Seam(f"{_KV}:discard_kv_cache_backup", "call", "gives that copy up", ("req", "backend")),
    Seam(
        "sglang.srt.runtime_context:get_disagg",
        "call",
        "how SGLang keeps retracted KV, and how often it polls",
    ),
)
