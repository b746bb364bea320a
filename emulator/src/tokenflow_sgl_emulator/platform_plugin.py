"""Entry point ``sglang.srt.plugins``: what SGLang offers no platform hook for."""

import inspect
import os
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tokenflow_sgl_emulator import (
    ATTENTION_BACKEND_NAME,
    PLATFORM_NAME,
    dp_attention,
    late_copies,
)
from tokenflow_sgl_emulator.emulator_seam import SINCE, Seam, is_older
from tokenflow_sgl_emulator.emulator_seams import (
    BATCH_INVARIANCE,
    BATCH_PINNING,
    CHECK_END,
    DEVICE_MODULE,
    DEVICE_REPORT,
    END_ANSWERS,
    GATHER,
    HANDED_OVER,
    HOLD_ARRIVALS,
    HOOKED,
    HOST_MEMORY,
    HOST_POOL,
    KV_LINK,
    LORA_PINNING,
    MLA_LOAD,
    MLA_MEMORY,
    MLA_STORE,
    NOTE_IDLE,
    OVERLAP,
    PREFETCH_WAIT,
    PROFILE,
    ROW_COPY,
    SAMPLING_HASH,
    SCATTER,
    START_STORAGE,
    STREAMS,
    TIMED,
    VIRTUAL,
    WAIT_FOR_RESULT,
)
from tokenflow_sgl_emulator.timed import timed_streams
from tokenflow_sgl_emulator.timed.clock import virtual_time
from tokenflow_sgl_emulator.timed.device import timing_is_on
from tokenflow_sgl_emulator.timed.words import words_are_real

_PACKAGE = __name__.partition(".")[0]


def register() -> None:
    """Register this platform's hooks and choices; nothing unless it is the chosen platform."""
    if os.environ.get("SGLANG_PLATFORM") != PLATFORM_NAME:
        return
    from sglang.srt.arg_groups.choices import (
        add_attention_backend_choices,
        add_deterministic_attention_backend_choices,
        add_radix_supported_deterministic_attention_backend_choices,
    )
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from tokenflow_sgl_emulator import mla_pool, operator_routes
    from tokenflow_sgl_emulator.answer_ends import check_end, end_answers
    from tokenflow_sgl_emulator.kv_link import LocalTransferEngine
    from tokenflow_sgl_emulator.no_pinning import without_pinning
    from tokenflow_sgl_emulator.seeded_sampling import murmur_hash32
    from tokenflow_sgl_emulator.storage.storage_threads import start_storage_threads

    add_attention_backend_choices([ATTENTION_BACKEND_NAME])
    add_deterministic_attention_backend_choices([ATTENTION_BACKEND_NAME])
    add_radix_supported_deterministic_attention_backend_choices([ATTENTION_BACKEND_NAME])
    HookRegistry.register(SAMPLING_HASH.target, murmur_hash32, HookType.REPLACE)
    HookRegistry.register(KV_LINK.target, LocalTransferEngine, HookType.REPLACE)
    HookRegistry.register(BATCH_INVARIANCE.target, _already_batch_invariant, HookType.REPLACE)
    HookRegistry.register(HOST_POOL.target, _choose_host_pool, HookType.AROUND)
    HookRegistry.register(HOST_MEMORY.target, without_reserve, HookType.AROUND)
    HookRegistry.register(MLA_MEMORY.target, mla_pool.without_pinned_memory, HookType.AROUND)
    HookRegistry.register(MLA_LOAD.target, mla_pool.load_to_device_per_layer, HookType.REPLACE)
    HookRegistry.register(MLA_STORE.target, mla_pool.backup_from_device_all_layer, HookType.REPLACE)
    HookRegistry.register(END_ANSWERS.target, end_answers, HookType.AROUND)
    HookRegistry.register(CHECK_END.target, check_end, HookType.BEFORE)
    HookRegistry.register(START_STORAGE.target, start_storage_threads, HookType.AROUND)
    HookRegistry.register(ROW_COPY.target, dp_attention.memcpy, HookType.REPLACE)
    HookRegistry.register(GATHER.target, dp_attention.all_gather_into_tensor, HookType.REPLACE)
    HookRegistry.register(SCATTER.target, dp_attention.reduce_scatter_tensor, HookType.REPLACE)
    HookRegistry.register(DEVICE_MODULE.target, operator_routes.device_module, HookType.AROUND)
    HookRegistry.register(PROFILE.target, operator_routes.profile, HookType.AROUND)
    HookRegistry.register(OVERLAP.target, _overlap_drafts, HookType.REPLACE)
    for seam in (*LORA_PINNING, BATCH_PINNING):
        HookRegistry.register(seam.target, without_pinning, HookType.AROUND)
    if timing_is_on():
        if is_older():
            raise RuntimeError(
                f"a timed device is emulated on SGLang {SINCE} or later; install that "
                "version, or start without a profile"
            )
        from tokenflow_sgl_emulator.timed import hooks, request_checks
        from tokenflow_sgl_emulator.timed.prefetch_wait import start_prefetch_wait

        _replace_streams(timed_streams)
        HookRegistry.register(CHECK_END.target, request_checks.check_logprobs, HookType.BEFORE)
        if virtual_time():
            HookRegistry.register(CHECK_END.target, request_checks.check_arrival, HookType.BEFORE)
            HookRegistry.register(HOLD_ARRIVALS.target, hooks.hold_arrivals, HookType.AROUND)
            HookRegistry.register(HANDED_OVER.target, hooks.stamp_handed_over, HookType.BEFORE)
            HookRegistry.register(WAIT_FOR_RESULT.target, hooks.stamp_result, HookType.BEFORE)
            HookRegistry.register(NOTE_IDLE.target, hooks.pass_time, HookType.AROUND)
        else:
            HookRegistry.register(WAIT_FOR_RESULT.target, hooks.wait_for_result, HookType.BEFORE)
            HookRegistry.register(NOTE_IDLE.target, hooks.note_idle, HookType.BEFORE)
        HookRegistry.register(PREFETCH_WAIT.target, start_prefetch_wait, HookType.AROUND)
        HookRegistry.register(DEVICE_REPORT.target, hooks.add_report, HookType.AROUND)
    elif late_copies.lateness():
        _replace_streams(late_copies)


def _replace_streams(twins: ModuleType) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for seam in STREAMS:
        twin = getattr(twins, seam.target.rpartition(".")[2])
        HookRegistry.register(seam.target, twin, HookType.REPLACE)


def check_active() -> None:
    """Make sure that every hook is in place: SGLang only logs when a plugin or a hook fails.

    Raises:
        RuntimeError: A hook is missing; the message names it.
    """
    wanted: tuple[Seam, ...] = HOOKED
    if timing_is_on():
        wanted = (*HOOKED, *TIMED, *(VIRTUAL if virtual_time() else ()))
    elif late_copies.lateness():
        wanted = (*HOOKED, *STREAMS)
    check_hooked(wanted)


def check_hooked(wanted: tuple[Seam, ...]) -> None:
    """Make sure of these hooks.

    Raises:
        RuntimeError: One of them is missing; the message names it.
    """
    missing = [seam.target for seam in wanted if not _is_hooked(pkgutil.resolve_name(seam.target))]
    if missing:
        raise RuntimeError(
            f"SGLang did not apply these hooks of {PLATFORM_NAME!r}: {', '.join(missing)}. "
            "If SGLANG_PLUGINS is set, it must list the plugin; else the log says what failed "
            f"(tested with SGLang {SINCE})."
        )


def _is_hooked(target: Any) -> bool:
    """Whether ours runs when it is called, maybe inside hooks of other plugins."""
    while target is not None:
        # Of a wrapper that SGLang's registry has made: its hook, and what that goes around.
        inside = inspect.getclosurevars(target).nonlocals if inspect.isfunction(target) else {}
        if _is_ours(target) or _is_ours(inside.get("hook")):
            return True
        target = (
            inside.get("original_fn") if "hook" in inside else getattr(target, "__wrapped__", None)
        )
    return False


def _is_ours(function: Any) -> bool:
    # A wrapper says that it is of the module that what it wraps is of.
    names = getattr(function, "__globals__", None)
    home = names["__name__"] if names else getattr(function, "__module__", "")
    return str(home).partition(".")[0] == _PACKAGE


def _choose_host_pool(original: Callable[[Any], type], buffer_info: Any) -> type:
    """Around hook: SGLang decides by the device buffers, we put our twin in its place."""
    if timing_is_on() and words_are_real():
        from tokenflow_sgl_emulator.timed.words_host_pool import WordsHostPool

        return WordsHostPool
    if timing_is_on():
        from tokenflow_sgl_emulator.timed.timed_host_pool import TimedHostPool

        return TimedHostPool
    from tokenflow_sgl_emulator.host_pool import torch_host_pool

    return torch_host_pool(original(buffer_info))


def without_reserve(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around hook of what builds the pools: HiCache's may take all memory that is free.

    SGLang leaves 10 GiB to others, also where it chooses the pool's size itself. The memory is of
    the machine that emulates, not of the device's host, and an emulated pool is a few megabytes.
    """
    from sglang.srt.mem_cache.host_memory import available_host_memory_bytes
    from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope

    with host_memory_budget_scope(available_host_memory_bytes(allow_cgroup_fallback=True)):
        return original(*args, **kwargs)


def _overlap_drafts(_server_args: Any) -> None:
    """Instead of SGLang's rule for CPUs, under which speculation does not overlap."""


def _already_batch_invariant(_runner: Any) -> None:
    """Instead of enabling Triton kernels: every request is computed by itself here anyway."""
