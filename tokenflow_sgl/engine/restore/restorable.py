"""Which of SGLang's prefetches can be made one from the tail."""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from tokenflow_sgl.engine.unsupported import undisturbed_reason


def restorable(tree: Any, request: Any, info: Any) -> bool:
    """Whether a prefetch may bring a request's tail.

    Args:
        tree: SGLang's.
        request: SGLang's.
        info: SGLang's of its prefetch, which has begun.
    """
    operation = info.operation
    if info.host_indices is not None or operation.pool_transfers:
        return False
    if tuple(tree.tree_components) != (ComponentType.FULL,):
        return False  # windows and states do not come page by page
    if operation.prefix_keys is not None or request.positional_embed_overrides is not None:
        return False
    return undisturbed_reason(request) is None
