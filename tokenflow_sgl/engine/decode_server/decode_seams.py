"""The ledger's rows for the decode server of a disaggregated pair."""

from __future__ import annotations

from tokenflow_sgl.engine.sglang.seam import Seam

_LOOP = "sglang.srt.disaggregation.decode:SchedulerDisaggregationDecodeMixin"
_ARRIVING = "sglang.srt.disaggregation.decode:DecodePreallocQueue"
_KV = "sglang.srt.mem_cache.common"
_COMPRESSED = "sglang.srt.mem_cache.deepseek_v4_memory_pool:DeepSeekV4TokenToKVPool"
_TREE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"
_SENT = "what a prefill server sends of a stream, which a copy must have"

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
        f"{_TREE}.restore_kv_cache",
        "hook",
        "submits a resumed stream's copy and goes on",
        ("req", "backup"),
    ),
    Seam(
        f"{_TREE}.discard_kv_cache_backup",
        "hook",
        "the host's side is kept until such a copy has landed",
        ("backup",),
    ),
    Seam(
        f"{_KV}:dsv4_needs_rebootstrap",
        "call",
        "whether SGLang keeps no copy of what it retracts",
        ("token_to_kv_pool_allocator",),
    ),
    Seam(
        "sglang.srt.managers.schedule_batch:Req.offload_kv_cache",
        "call",
        "copies a stream of DeepSeek V4 to the host",
        ("req_to_token_pool", "token_to_kv_pool_allocator"),
    ),
    Seam(
        f"{_COMPRESSED}.get_cpu_copy",
        "hook",
        "DeepSeek V4's pools do not copy a stream themselves",
        ("indices", "req_pool_index"),
    ),
    Seam(
        f"{_COMPRESSED}.load_cpu_copy",
        "hook",
        "gives such a copy back",
        ("kv_cache_cpu", "indices", "req_pool_index"),
    ),
    Seam(f"{_COMPRESSED}.get_contiguous_buf_infos", "call", _SENT),
    Seam(f"{_COMPRESSED}.get_state_buf_infos", "call", _SENT),
    Seam(f"{_COMPRESSED}.get_request_state_buf_infos", "call", _SENT),
    Seam(
        f"{_COMPRESSED}.get_online_c128_mtp_max_draft_tokens",
        "call",
        "states that take drafts in later are refused",
    ),
    Seam(
        "sglang.srt.speculative.base_spec_worker:BaseSpecWorker.primary_draft_kv_pool",
        "call",
        "the pool of DeepSeek V4's layer for drafts, which a copy has, too",
    ),
    Seam(f"{_COMPRESSED}.translate_loc_from_full_to_swa", "call", "pages of its window"),
    Seam("sglang.srt.platforms:current_platform", "call", "waits for such copies"),
    Seam(
        "sglang.srt.runtime_context:get_disagg",
        "call",
        "how SGLang keeps retracted KV, and how often it polls",
    ),
)
