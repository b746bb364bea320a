"""Puts the twins in place, in a process that is about to build a DeepSeek V4."""

from functools import cache
from typing import Any

from tokenflow_sgl_emulator.compressed import compressed_host_pool, packed_rows
from tokenflow_sgl_emulator.compressed.compressed_seams import (
    COMPRESSED,
    HOST_COPIES,
    HOST_MEMORY_OF_ROWS,
    NO_PLATFORM,
    REJECTED_DRAFTS,
    ROWS,
)
from tokenflow_sgl_emulator.mla_pool import without_pinned_memory
from tokenflow_sgl_emulator.platform_plugin import check_hooked

BACKEND = "dsv4"
"""What SGLang calls the attention of these models, whatever was asked for."""


def _allowed_here(*_args: Any, **_kwargs: Any) -> None:
    """Instead of refusing platforms that SGLang does not have itself."""


def _attention(model_runner: Any) -> Any:
    """Imported late: attention needs the model runner, which imports the platform."""
    from tokenflow_sgl_emulator.compressed.compressed_attention import CompressedAttention

    return CompressedAttention(model_runner)


@cache
def install() -> None:
    """Replace SGLang's kernels for V4's pools, and its attention; once per process.

    Raises:
        RuntimeError: SGLang did not apply a hook; the message names it.
    """
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from tokenflow_sgl_emulator.compressed.compressed_drafts import clear_unaccepted

    register_attention_backend(BACKEND)(_attention)
    HookRegistry.register(ROWS.target, packed_rows.store, HookType.REPLACE)
    HookRegistry.register(REJECTED_DRAFTS.target, clear_unaccepted, HookType.REPLACE)
    HookRegistry.register(NO_PLATFORM.target, _allowed_here, HookType.REPLACE)
    for seam in HOST_MEMORY_OF_ROWS:
        HookRegistry.register(seam.target, without_pinned_memory, HookType.AROUND)
    for seam in HOST_COPIES:
        twin = getattr(compressed_host_pool, seam.target.rpartition(".")[2])
        HookRegistry.register(seam.target, twin, HookType.REPLACE)
    HookRegistry.apply_hooks()
    check_hooked(COMPRESSED)
