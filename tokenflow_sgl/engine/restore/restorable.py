"""Which of SGLang's prefetches can be made one from the tail."""

from __future__ import annotations

from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.tree import OngoingFetch, Tree
from tokenflow_sgl.engine.unsupported import undisturbed_reason


def restorable(tree: Tree, request: Req, info: OngoingFetch) -> bool:
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


def restorable_by_layers(request: Req) -> bool:
    """Whether a request's prefill may be split after some layers, as far as it is for the request.

    It is its first one, gives one token, and nothing but the prompt decides what is computed.
    """
    return (
        not request.output_ids
        and request.sampling_params.max_new_tokens > 0
        and request.grammar is None
        and request.lora_id is None
        and request.token_indices_to_pool is None
        and not request.skip_radix_cache_insert
    )
