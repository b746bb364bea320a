"""The ledger's rows for restorations layer by layer."""

from __future__ import annotations

from tokenflow_sgl.engine.sglang.seam import Seam

_SCHEDULER = "sglang.srt.managers.scheduler:Scheduler"

RESTORE_LAYERS: tuple[Seam, ...] = (
    Seam(
        f"{_SCHEDULER}.run_batch",
        "override",
        "finishes a prefill whose lower layers are computed already",
        ("batch",),
    ),
    Seam(
        "sglang.srt.model_executor.model_runner:ModelRunner.forward",
        "call",
        "computes some layers of a prefill",
        ("forward_batch", "reinit_attn_backend", "split_forward_count"),
    ),
    Seam(
        "sglang.srt.model_executor.model_runner:ModelRunner.sample",
        "call",
        "samples where such a prefill ends",
        ("logits_output", "forward_batch"),
    ),
    Seam(
        "sglang.srt.model_executor.model_runner:ModelRunner.attn_tp_sequence_sharded",
        "call",
        "tells a model whose ranks have each some of the tokens",
        ("num_tokens",),
    ),
    Seam(
        "sglang.srt.model_executor.forward_batch_info:ForwardBatch.init_new",
        "call",
        "computes some layers of a prefill",
        ("batch", "model_runner", "return_hidden_states_before_norm"),
    ),
    Seam(
        "sglang.srt.model_executor.forward_batch_info:ForwardMode.SPLIT_PREFILL",
        "call",
        "computes some layers of a prefill",
    ),
    Seam(
        "sglang.srt.layers.layer_boundary.residual.batch:to_pp",
        "call",
        "takes the tokens behind a prefix out of a prefill that is split",
        ("hidden_states", "forward_batch"),
    ),
    Seam(
        "sglang.srt.layers.layer_boundary.stage:StageBoundary.from_pp",
        "call",
        "goes on with the tokens behind a prefix",
        ("tensors", "forward_batch"),
    ),
    Seam(
        "sglang.srt.managers.overlap_utils:resolve_forward_inputs",
        "call",
        "hands a prompt's tokens to the device before its layers are computed",
        ("batch", "future_map"),
    ),
    Seam(
        f"{_SCHEDULER}.stash_chunked_request",
        "override",
        "keeps KV that lacks layers out of the tree",
        ("req",),
    ),
    Seam(
        f"{_SCHEDULER}.process_pending_chunked_abort",
        "override",
        "ends copies to memory that an aborted request gives back",
    ),
    Seam(
        f"{_SCHEDULER}._apply_war_barrier",
        "call",
        "keeps later writes behind what layers read that are launched beside a step",
    ),
    Seam(
        "sglang.srt.mem_cache.hicache_storage:HiCacheFile._get_suffixed_key",
        "call",
        "reads layers of a page from its file",
        ("key",),
    ),
)
