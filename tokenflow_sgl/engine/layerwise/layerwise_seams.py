"""The ledger's rows for KV that is placed layer by layer."""

from __future__ import annotations

from tokenflow_sgl.engine.sglang.seam import Seam

_CONFIGURATOR = "sglang.srt.mem_cache.kv_cache_configurator:KVCacheConfigurator"
_POOL = "sglang.srt.mem_cache.memory_pool:MHATokenToKVPool"
_BACKEND = "sglang.srt.layers.attention"
_BATCH = "sglang.srt.managers.schedule_batch:ScheduleBatch"

LAYERWISE: tuple[Seam, ...] = (
    Seam(
        f"{_CONFIGURATOR}._profile_available_bytes",
        "hook",
        "SGLang hands out pages for the tokens of device and host",
    ),
    Seam(
        "sglang.srt.platforms.interface:SRTPlatform.get_kv_pool_cls",
        "hook",
        "puts the pool in place that has all layers in one arena",
        ("kind",),
    ),
    Seam(
        "sglang.srt.distributed.parallel_state:get_tp_group",
        "call",
        "all ranks admit the same prompts",
    ),
    Seam(
        "sglang.srt.mem_cache.memory_pool:ReqToTokenPool.free_rows",
        "hook",
        "a stream ends: what is not freed of it is the prefix tree's",
        ("indices",),
    ),
    Seam(
        "sglang.srt.mem_cache.base_prefix_cache:BasePrefixCache.prefix_device_indices",
        "call",
        "the pages that a prompt finds in the prefix tree, which a running stream may have",
        ("req",),
    ),
    Seam(
        f"{_BATCH}.init_new",
        "call",
        "paused streams whose KV was placed decode on in a batch of their own",
        ("reqs", "enable_overlap", "spec_algorithm"),
    ),
    Seam(f"{_BATCH}.prepare_for_prebuilt", "call", "fills it, as for KV that has come"),
    Seam(f"{_BATCH}.merge_batch", "call", "which joins those that run", ("other",)),
    Seam(
        "sglang.srt.managers.overlap_utils:FutureMap.stash",
        "call",
        "says what their next step begins with",
        ("future_indices", "payload"),
    ),
    Seam("sglang.srt.managers.overlap_utils:RelayPayload", "call", "the same", ("bonus_tokens",)),
    Seam(
        "sglang.srt.beam_search.coordinator:BeamCoordinator.validate_and_init",
        "hook",
        "answers requests for beam search with an error",
        ("req", "recv_req"),
    ),
    Seam(f"{_POOL}._create_buffers", "override", "makes the arena in place of a buffer per layer"),
    Seam(f"{_POOL}._init_data_ptrs_and_strides", "call", "SGLang's record of the buffers"),
    Seam(f"{_POOL}.get_kv_size_bytes", "override", "what of it is on the device"),
    Seam(
        f"{_POOL}._store_kv_layer",
        "override",
        "writes new tokens where their layer lies",
        ("layer_idx", "loc", "cache_k", "cache_v"),
    ),
    Seam(f"{_POOL}.get_key_buffer", "override", "only our attention may read", ("layer_id",)),
    Seam(f"{_POOL}.get_value_buffer", "override", "only our attention may read", ("layer_id",)),
    Seam(
        f"{_BACKEND}.attention_registry:register_attention_backend",
        "call",
        "lets each layer wait for its KV",
    ),
    Seam(
        f"{_BACKEND}.torch_native_backend:TorchNativeAttnBackend",
        "call",
        "computes, and reads where the tokens are from the table that its runner has",
        ("model_runner",),
    ),
    Seam(
        f"{_BACKEND}.triton_backend:TritonAttnBackend",
        "call",
        "computes on GPUs, and reads where forward_metadata.kv_indices says",
        ("model_runner",),
    ),
    Seam(
        f"{_BACKEND}.base_attn_backend:AttentionBackend.get_cuda_graph_seq_len_fill_value",
        "override",
        "what SGLang asks for where it tunes kernels at start",
    ),
    Seam(
        "sglang.srt.models.utils:enable_fused_set_kv_buffer",
        "hook",
        "new tokens are stored by the attention alone, on GPUs",
        ("forward_batch",),
    ),
    Seam(
        "sglang.srt.runtime_context:get_exec",
        "call",
        "whether SGLang captures CUDA graphs, with which no layer can wait",
    ),
    Seam(
        f"{_BACKEND}.base_attn_backend:AttentionBackend.init_forward_metadata",
        "override",
        "a step begins",
        ("forward_batch",),
    ),
)
