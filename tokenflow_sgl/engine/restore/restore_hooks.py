"""SGLang's hooks through which restorations hear of prefetches; see `restorations`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from tokenflow_sgl.engine.restore.restorations import Restorations
from tokenflow_sgl.engine.restore.tail_fetch import register_fetches

_TREE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
_ATTRIBUTE = "tokenflow_restorations"

Function = Callable[..., Any]


def register_restorations() -> None:
    """Declare the hooks, in the scheduler's process before it has a cache."""
    register_fetches()
    HookRegistry.register(f"{_TREE}.check_prefetch_progress", _progress, HookType.AROUND)
    HookRegistry.register(f"{_TREE}._handle_prefetch_result", _fetched, HookType.AROUND)


def attach_restorations(tree_cache: Any, restorations: Restorations) -> None:
    """The hooks on this tree go to these restorations."""
    setattr(tree_cache, _ATTRIBUTE, restorations)


def _progress(original: Function, tree: Any, request: Any) -> Any:
    restorations: Restorations | None = getattr(tree, _ATTRIBUTE, None)
    may_start = restorations.may_start(request) if restorations is not None else None
    return original(tree, request) if may_start is None else may_start


def _fetched(original: Function, tree: Any, operation: Any) -> Any:
    restorations: Restorations | None = getattr(tree, _ATTRIBUTE, None)
    if restorations is not None and restorations.keeps(operation):
        return None
    return original(tree, operation)
