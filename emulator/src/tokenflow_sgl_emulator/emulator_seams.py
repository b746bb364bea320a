"""The ledger of SGLang internals that the emulator relies on, beside SGLang's plugin interfaces.

An upgrade of SGLang is a walk down this table; a test checks every row against the installed one.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Seam:
    """One place in SGLang.

    Attributes:
        target: Dotted path of the function, method or class.
        use: ``"subclass"``, ``"call"``, or how it is hooked through ``HookRegistry``.
        why: What breaks without it, and when it can go.
    """

    target: str
    use: Literal["around", "before", "replace", "subclass", "call"]
    why: str


SGLANG_VERSION = "0.5.23"
"""The version that the table was written and tested against."""

HOST_POOL = Seam(
    "sglang.srt.mem_cache.pool_host.mha.get_mha_host_pool_cls",
    "around",
    "HiCache's host pool pins memory and copies with CUDA; goes when SRTPlatform gets a hook "
    "for host pools as it has for device pools.",
)
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
    "A client must hear of a wanted length that is none.",
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
TIMED = (*STREAMS, WAIT_FOR_RESULT, NOTE_IDLE, DEVICE_REPORT, PREFETCH_WAIT)
"""Hooked where a device is emulated (:mod:`tokenflow_sgl_emulator.timed`), and only there.

On a virtual clock `WAIT_FOR_RESULT` also stamps the tokens, and `NOTE_IDLE` is hooked around."""
HOLD_ARRIVALS = Seam(
    "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver."
    "recv_requests",
    "around",
    "On a virtual clock requests wait for their arrival before the scheduler sees them.",
)
VIRTUAL = (HOLD_ARRIVALS,)
"""Hooked where the emulated device runs on a virtual clock, beside `TIMED`."""
START_STORAGE = Seam(
    "sglang.srt.managers.cache_controller.HiCacheController._start_storage_threads",
    "around",
    "SGLang compiles its page hash in the first request that needs it, which takes 20 s; and a "
    "virtual clock must know when the threads are at work.",
)

HOOKED = (
    HOST_POOL,
    HOST_MEMORY,
    *LORA_PINNING,
    BATCH_INVARIANCE,
    SAMPLING_HASH,
    END_ANSWERS,
    CHECK_END,
    START_STORAGE,
)
"""Hooked by :mod:`tokenflow_sgl_emulator.platform_plugin`, checked when a model is loaded."""

_ATTENTION = (
    "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend._run_sdpa_forward_"
)
_LINK = "HiCache's interface for storage backends that one writes oneself."
_EXACT = "SGLang's own gives results that depend on the batch."

SEAMS = (
    *HOOKED,
    *TIMED,
    *VIRTUAL,
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
    Seam("sglang.srt.utils.poll_timer.PollTimer", "subclass", PREFETCH_WAIT.why),
    Seam("sglang.srt.mem_cache.pool_host.base.host_memory_budget_scope", "call", HOST_MEMORY.why),
    Seam("sglang.srt.mem_cache.host_memory.available_host_memory_bytes", "call", HOST_MEMORY.why),
)
