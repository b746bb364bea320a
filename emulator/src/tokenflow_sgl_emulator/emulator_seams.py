"""The ledger of SGLang internals that the emulator relies on, beside SGLang's plugin interfaces.

An upgrade of SGLang is a walk down this table; a test checks every row against the installed one.
"""

from tokenflow_sgl_emulator.compressed.compressed_seams import COMPRESSED
from tokenflow_sgl_emulator.emulator_seam import HOST_COPIES, KERNEL, POOL_COPIES, Seam
from tokenflow_sgl_emulator.recurrent.state_seams import STATES

HOST_POOL = Seam("sglang.srt.mem_cache.pool_host.mha.get_mha_host_pool_cls", "around", HOST_COPIES)
_MLA = "sglang.srt.mem_cache.pool_host.mla.MLATokenToKVPoolHost."
MLA_MEMORY = Seam(_MLA + "__init__", "around", POOL_COPIES)
MLA_LOAD = Seam(_MLA + "load_to_device_per_layer", "replace", POOL_COPIES)
MLA_STORE = Seam(_MLA + "backup_from_device_all_layer", "replace", POOL_COPIES)
HOST_MEMORY = Seam(
    "sglang.srt.mem_cache.kv_cache_builder.build_kv_cache",
    "around",
    "SGLang leaves 10 GiB of the machine's memory to others, whatever the pool's size; goes when "
    "the platform is asked.",
)

_LORA = "sglang.srt.lora.lora_manager.LoRAManager."
_LORA_PINS = "LoRA pins memory without asking the platform; goes when SGLang asks it."
LORA_PINNING = (
    Seam(_LORA + "__init__", "around", _LORA_PINS),
    Seam(_LORA + "load_lora_adapter", "around", _LORA_PINS),
    Seam(_LORA + "load_lora_adapter_from_tensors", "around", _LORA_PINS),
    Seam(_LORA + "prepare_lora_batch", "around", _LORA_PINS),
)
_SENDS = "A disaggregated pair: "
KV_SENDER = Seam(
    "sglang.srt.disaggregation.mooncake.conn.MooncakeKVSender.__init__",
    "around",
    _SENDS + "page numbers come in pinned memory; goes when SGLang asks the platform.",
)
EARLY_SEND = Seam(
    "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin"
    ".maybe_send_cached_prefix_chunk",
    "replace",
    _SENDS + "a prefix that is sent early waits for a CUDA event; it goes with the rest.",
)
KV_LINK = Seam(
    "sglang.srt.distributed.device_communicators.mooncake_transfer_engine.MooncakeTransferEngine",
    "replace",
    _SENDS + "Mooncake wants its own library; goes when SGLang has a backend for one machine.",
)
BATCH_INVARIANCE = Seam(
    "sglang.srt.model_executor.model_runner.ModelRunner.maybe_enable_batch_invariant_mode",
    "replace",
    "Deterministic inference swaps in Triton kernels; ours are independent of the batch already.",
)
SAMPLING_HASH = Seam(
    "sglang.kernels.ops.sampling.murmur_hash.murmur_hash32",
    "replace",
    "Seeded sampling hashes in Triton.",
)
END_ANSWERS = Seam(
    "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation",
    "around",
    "The model of this platform never ends an answer by itself; the client says where it does.",
)
CHECK_END = Seam(
    "sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_one_request",
    "before",
    "A client must hear of what no answer can be given to: see answer_ends.py, request_checks.py.",
)
_OWN = (
    "Streams that keep time, or whose copies are late; goes when SRTPlatform lets a platform name "
    "its device module."
)
STREAMS = tuple(
    Seam(f"torch.cpu.{name}", "replace", _OWN)
    for name in ("Stream", "Event", "StreamContext", "current_stream")
)
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler."
WAIT_FOR_RESULT = Seam(
    _SCHEDULER + "process_batch_result",
    "before",
    "Without overlap SGLang waits for the device by reading from it.",
)
NOTE_IDLE = Seam(
    _SCHEDULER + "on_idle", "before", "Tells a device without work from one that is kept waiting."
)
DEVICE_REPORT = Seam(
    _SCHEDULER + "get_internal_state",
    "around",
    "Clients must learn the time dilation and whether the CPU kept up; goes when platforms can "
    "add to /server_info.",
)
PREFETCH_WAIT = Seam(
    "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache._start_storage_prefetch_wait",
    "around",
    "How long a request waits for its pages from the storage is a time of the device's.",
)
TIMED_CLASSES = (Seam("sglang.srt.utils.poll_timer.PollTimer", "subclass", PREFETCH_WAIT.why),)
"""What classes of a timed device derive from."""
TIMED = (*STREAMS, WAIT_FOR_RESULT, NOTE_IDLE, DEVICE_REPORT, PREFETCH_WAIT)
"""Hooked where a device is emulated (:mod:`tokenflow_sgl_emulator.timed`), and only there.

On a virtual clock `WAIT_FOR_RESULT` also stamps the tokens, and `NOTE_IDLE` is hooked around."""
HOLD_ARRIVALS = Seam(
    "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver."
    "recv_requests",
    "around",
    "On a virtual clock requests wait for their arrival before the scheduler sees them.",
)
HANDED_OVER = Seam(
    "sglang.srt.managers.scheduler_components.batch_result_processor."
    "SchedulerBatchResultProcessor.process_batch_result_prebuilt",
    "before",
    "On a virtual clock the first token of a stream on a decode server, too, carries its moment.",
)
VIRTUAL = (HOLD_ARRIVALS, HANDED_OVER)
"""Hooked where the emulated device runs on a virtual clock, beside `TIMED`."""
START_STORAGE = Seam(
    "sglang.srt.managers.cache_controller.HiCacheController._start_storage_threads",
    "around",
    "SGLang compiles its page hash in the first request that needs it, which takes 20 s; and a "
    "virtual clock must know when the threads are at work.",
)

_GROUP = "sglang.srt.distributed.parallel_state.GroupCoordinator."
_GPU_OPERATOR = "An operator that is registered for GPUs; goes when SGLang asks the platform."
ROW_COPY = Seam("sglang.srt.layers.dp_attention.memcpy", "replace", "Copies rows with Triton.")
GATHER = Seam(_GROUP + "all_gather_into_tensor", "replace", _GPU_OPERATOR)
SCATTER = Seam(_GROUP + "reduce_scatter_tensor", "replace", _GPU_OPERATOR)
BATCH_PINNING = Seam(
    "sglang.srt.model_executor.forward_batch_info.ForwardBatch.prepare_mlp_sync_batch",
    "around",
    "Attention in data-parallel ranks pins memory without asking the platform.",
)
DP_ATTENTION = (ROW_COPY, GATHER, SCATTER, BATCH_PINNING)
"""What attention in data-parallel ranks needs; see dp_attention.py."""
OVERLAP = Seam(
    "sglang.srt.arg_groups.speculative_hook._disable_overlap_schedule_for_cpu",
    "replace",
    "Speculation does not overlap on a CPU; the device that is emulated does.",
)
DEVICE_MODULE = Seam(
    "torch.get_device_module",
    "around",
    "/release_memory_occupation waits for the device without asking the platform which one it is.",
)
PROFILE = Seam(
    "sglang.srt.managers.scheduler_components.profiler_manager.SchedulerProfilerManager._profile",
    "around",
    "/start_profile can ask for CUDA's own records, which end a server without CUDA.",
)

HOOKED = (
    DEVICE_MODULE,
    PROFILE,
    HOST_POOL,
    HOST_MEMORY,
    MLA_MEMORY,
    MLA_LOAD,
    MLA_STORE,
    *LORA_PINNING,
    KV_LINK,
    BATCH_INVARIANCE,
    SAMPLING_HASH,
    END_ANSWERS,
    CHECK_END,
    START_STORAGE,
    *DP_ATTENTION,
    OVERLAP,
)
"""Hooked by :mod:`tokenflow_sgl_emulator.platform_plugin`, checked when a model is loaded."""

_LOCS = "sglang.kernels.ops.speculative.cache_locs."
_EAGLE = "sglang.kernels.ops.speculative.eagle."
_TREES = "sglang.kernels.ops.speculative.spec_tree."
_BACKENDS = "sglang.srt.speculative.draft_utils.DraftBackendFactory."
_CHOICE = "SGLang's choices for drafts know its own devices and attention backends only."
SPECULATION = (
    Seam(_LOCS + "assign_draft_cache_locs_contiguous_func", "replace", KERNEL),
    Seam(_LOCS + "fill_front_out_cache_loc_func", "replace", KERNEL),
    Seam(_EAGLE + "fill_accept_out_cache_loc_func", "replace", KERNEL),
    Seam(_EAGLE + "fill_bonus_tokens_func", "replace", KERNEL),
    Seam("sglang.srt.mem_cache.allocation.assign_req_to_token_pool_func", "replace", KERNEL),
    Seam("sglang.srt.mem_cache.allocation.get_last_loc", "replace", KERNEL),
    Seam("sglang.kernels.ops.speculative.gather_spec_extras.gather_spec_extras", "replace", KERNEL),
    Seam(_TREES + "build_tree_kernel_efficient_func", "replace", KERNEL),
    Seam(_TREES + "verify_tree_greedy_func", "replace", KERNEL),
    Seam(
        "sglang.kernels.ops.speculative.reconstruct_tree.reconstruct_indices_from_tree_mask_func",
        "replace",
        KERNEL,
    ),
    Seam(
        "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool._init_kv_copy_and_warmup",
        "replace",
        KERNEL,
    ),
    Seam("sglang.srt.speculative.eagle_utils.default_tree_mask_mode", "replace", _CHOICE),
    Seam("sglang.srt.speculative.eagle_utils._verify_uses_greedy", "replace", _CHOICE),
    Seam(_BACKENDS + "create_decode_backend", "replace", _CHOICE),
    Seam(_BACKENDS + "create_draft_extend_backend", "replace", _CHOICE),
)
"""Hooked where drafts are verified (:mod:`tokenflow_sgl_emulator.speculation`), and only there."""

_ATTENTION = (
    "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend._run_sdpa_forward_"
)
_LINK = "HiCache's interface for storage backends that one writes oneself."
_EXACT = "SGLang's own gives results that depend on the batch."

SEAMS = (
    *HOOKED,
    KV_SENDER,
    EARLY_SEND,
    *TIMED,
    *VIRTUAL,
    *SPECULATION,
    *STATES,
    *COMPRESSED,
    Seam("sglang.srt.speculative.ngram_worker._derive_tree_links", "call", KERNEL),
    Seam(_ATTENTION + "extend", "subclass", _EXACT),
    Seam(_ATTENTION + "decode", "subclass", _EXACT),
    Seam(
        "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.apply", "subclass", _EXACT
    ),
    Seam(
        "sglang.srt.layers.quantization.unquant.UnquantizedEmbeddingMethod.apply",
        "subclass",
        _EXACT,
    ),
    Seam(
        "sglang.srt.mem_cache.pool_host.mha.MHATokenToKVPoolHost.load_to_device_per_layer",
        "subclass",
        "CUDA copies.",
    ),
    Seam(
        "sglang.srt.mem_cache.pool_host.mha.MHATokenToKVPoolHost.backup_from_device_all_layer",
        "subclass",
        "CUDA copies.",
    ),
    Seam("sglang.srt.mem_cache.hicache_storage.HiCacheStorage", "subclass", _LINK),
    Seam("sglang.srt.mem_cache.utils.get_hash_str", "call", START_STORAGE.why),
    *TIMED_CLASSES,
    Seam("sglang.srt.layers.dp_attention.memcpy_cpu", "call", ROW_COPY.why),
    Seam(
        "sglang.srt.models.deepseek_common.attention_backend_handler.AttentionBackendRegistry."
        "register",
        "call",
        "SGLang takes another form of MLA's attention for prefills with backends it does not know.",
    ),
    Seam(_GROUP + "_all_gather_into_tensor", "call", _GPU_OPERATOR),
    Seam(_GROUP + "_reduce_scatter_tensor", "call", _GPU_OPERATOR),
    Seam("sglang.srt.mem_cache.pool_host.base.host_memory_budget_scope", "call", HOST_MEMORY.why),
    Seam("sglang.srt.mem_cache.host_memory.available_host_memory_bytes", "call", HOST_MEMORY.why),
)
