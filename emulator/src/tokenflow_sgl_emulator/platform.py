"""The out-of-tree SGLang platform: plain torch on the CPU, chosen by ``SGLANG_PLATFORM``.

To SGLang it is a device without Triton, graphs, pinned memory or kernels of its own, so every
layer takes its native torch path and the attention is our reference backend.
"""

import os
from collections.abc import Callable
from typing import Any

import psutil
import torch
from sglang.srt.platforms.device_mixin import DeviceCapability, PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

from tokenflow_sgl_emulator import (
    ATTENTION_BACKEND_NAME,
    PLATFORM_NAME,
    archs,
    late_copies,
    platform_plugin,
)
from tokenflow_sgl_emulator.defaults import apply_defaults, apply_model_defaults
from tokenflow_sgl_emulator.speculation.draft_hooks import install
from tokenflow_sgl_emulator.speculation.draft_slots import extend_cache_locs
from tokenflow_sgl_emulator.timed.clock import now, virtual_time
from tokenflow_sgl_emulator.timed.device import dilation, the_device, timing_is_on
from tokenflow_sgl_emulator.timed.device_defaults import apply_device_defaults
from tokenflow_sgl_emulator.timed.words import words_are_real

SPECULATIVE = ("EAGLE", "EAGLE3", "NGRAM", "STANDALONE")
"""SGLang's algorithms of speculative decoding that run on this platform."""


def activate() -> str | None:
    """Entry point ``sglang.srt.platforms``: the platform class, or None when not asked for.

    SGLang calls this on every start, whatever the platform, so it must decline unless it is named.

    Raises:
        RuntimeError: It was named but a CUDA device is visible. SGLang would then mix CUDA
            kernels with CPU tensors, because much of it asks torch and not the platform.
    """
    if os.environ.get("SGLANG_PLATFORM") != PLATFORM_NAME:
        return None
    if torch.cuda.is_available():
        raise RuntimeError(
            f"SGLANG_PLATFORM={PLATFORM_NAME} runs on the CPU, but a CUDA device is visible: "
            'hide it with CUDA_VISIBLE_DEVICES="".'
        )
    # Read when SGLang's model registry is imported, here and in the processes that are started.
    os.environ.setdefault("SGLANG_EXTERNAL_MODEL_PACKAGE", archs.PACKAGE)
    # In SGLang's bfloat16 a state would depend on how its prompt was cut into chunks.
    os.environ.setdefault("SGLANG_MAMBA_CONV_DTYPE", "float32")
    return f"{__name__}:EmulatorPlatform"


class EmulatorPlatform(SRTPlatform):
    """SGLang's device interface answered by the CPU; memory sizes are in bytes."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities()  # all off: no Triton, no graphs, no sgl_kernel

    @property
    def time_dilation(self) -> float:
        """Wall-clock seconds per second of this device; tokenflow's scheduler clock asks for it."""
        return dilation()

    def clock(self) -> float:
        """Now, in seconds; tokenflow's scheduler asks here in place of the wall clock.

        Not the wall's where the device runs on a virtual clock.
        """
        return now()

    @property
    def virtual_time(self) -> bool:
        """Whether `clock` is moved by this device's work alone, so that a client cannot wait on it.

        tokenflow's front end asks for it.
        """
        return virtual_time()

    @property
    def launches_ahead(self) -> bool:
        """Whether a step's launch returns before it is computed; tokenflow's step timer asks.

        A device with a clock of its own is waited for; else a step is computed where it is
        launched.
        """
        return timing_is_on()

    def kv_copy(self, copy: Callable[[], None], tokens: int, to_device: bool) -> None:
        """Do a copy of one layer's KV on the current stream; layer-wise KV of tokenflow asks here.

        It lands late where copies do. On an emulated device it takes its time and moves nothing.
        """
        if timing_is_on():
            the_device().copy_layer(tokens, to_device)
        else:
            late_copies.copy(copy)

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """Called once while SGLang resolves its arguments, in the process that starts it."""
        apply_defaults(server_args)
        if timing_is_on():
            apply_device_defaults(server_args, the_device().profile)
        else:
            apply_model_defaults(server_args)

    def init_backend(self) -> None:
        """Called in each worker before a model runner exists."""
        from sglang.srt.layers.attention.attention_registry import register_attention_backend

        register_attention_backend(ATTENTION_BACKEND_NAME)(_make_attention)
        # Matrices of tiny models are too small to share between threads, and the ranks of a
        # tensor-parallel group compete for the same cores.
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)

    def post_load_model(self, model: torch.nn.Module) -> None:
        """Called in each worker once the weights are loaded.

        Raises:
            RuntimeError: SGLang did not apply the hooks that belong to this platform; or a device
                is emulated, and the model is none that takes its time.
        """
        platform_plugin.check_active()
        if timing_is_on():
            the_device().check_model(model)
        if not timing_is_on() or words_are_real():
            from tokenflow_sgl_emulator.exact_linear import make_linears_exact

            make_linears_exact(model)

    def support_mamba_cache_extra_buffer(self) -> bool:
        """States can be kept along a prompt: their copies have twins here."""
        return True

    def supports_speculative_algorithm(self, algorithm: str) -> bool:
        """Those whose kernels have twins here."""
        return algorithm in SPECULATIVE

    def get_speculative_cache_locs_fn(self) -> Callable[..., torch.Tensor]:
        """Where the drafts that are verified are written."""
        return extend_cache_locs

    def get_speculative_worker_cls(self, algorithm: str) -> None:
        """SGLang's own worker; called where it is about to be made, so its kernels are replaced."""
        install()

    def get_default_attention_backend(self) -> str:
        """The reference attention of this package."""
        return ATTENTION_BACKEND_NAME

    def get_dispatch_key_name(self) -> str:
        """Fused operators take their plain torch path."""
        return "native"

    def get_compile_backend(self, mode: str | None = None) -> str:
        """No compiler: ``eager`` runs the traced code as it is."""
        return "eager"

    def get_device(self, device_id: int = 0) -> str:
        """A string, although the interface suggests ``torch.device``: SGLang splits it at ':'."""
        return "cpu"

    def set_device(self, device: torch.device) -> None:
        """There is one."""

    def get_device_name(self, device_id: int = 0) -> str:
        """The name of the platform."""
        return PLATFORM_NAME

    def get_device_uuid(self, device_id: int = 0) -> str:
        """One id per rank, although all ranks share the CPU."""
        return f"{PLATFORM_NAME}-{device_id}"

    def get_device_capability(self, device_id: int = 0) -> DeviceCapability | None:
        """None: there is no compute capability."""
        return None

    def get_device_total_memory(self, device_id: int = 0) -> int:
        """RAM of the machine."""
        return int(psutil.virtual_memory().total)

    def get_current_memory_usage(self, device: torch.device | None = None) -> float:
        """Used memory of the whole machine, so that total minus used is what is free."""
        memory = psutil.virtual_memory()
        return float(memory.total - memory.available)

    def get_torch_profiler_activity_str(self) -> str:
        """A name that none of SGLang's own activities has.

        `/start_profile` asks for it. The device is the CPU, which is among SGLang's own: under
        its name, what this device does would be recorded twice.
        """
        return PLATFORM_NAME

    def get_torch_profiler_activity(self) -> torch.profiler.ProfilerActivity:
        """What this device does is done by the CPU."""
        return torch.profiler.ProfilerActivity.CPU

    def get_available_memory(self, device_id: int = 0) -> tuple[int, int]:
        """Free and total."""
        memory = psutil.virtual_memory()
        return memory.available, memory.total


def _make_attention(model_runner: Any) -> Any:
    """Imported late: the attention backend needs the model runner, which imports the platform."""
    from tokenflow_sgl_emulator.attention import ReferenceAttention

    return ReferenceAttention(model_runner)
