"""Asks SGLang's prefix tree how much of a waiting prompt is cached, and tells it what paused use.

By the walk with which SGLang itself looks at requests that wait: for its cache-aware policies in
every pass, and for the others every WAITING_PREFIX_REFRESH_INTERVAL passes so that their prefixes
are not evicted first. Like these it may split a node at the end of what matches, as the prefill
would, and counts as a use of what it finds; no oftener than those refreshes. (The tree's one walk
without a trace, match_full_device_prefix, does not see the host.) It adopts nothing: the request is
not changed, and nothing is locked, loaded or allocated. Trees of tensor-parallel ranks are alike,
and so are the answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.tree import Tree
from tokenflow_sgl.lifecycle.cached_prefixes import Match
from tokenflow_sgl.lifecycle.table import StreamTable


def prompt_match(tree_cache: Tree, table: StreamTable[Any]) -> Match:
    """The matcher of one scheduler's tree, for slots of its table."""

    def match(slot: int) -> tuple[int, int]:
        req = table.request(slot)
        if req is None or req.positional_embed_overrides is not None:
            return 0, 0  # such prompts are not cached: equal tokens have other embeddings
        prompt = req.origin_input_ids
        # At least the last token is computed, and more for a prompt's log probabilities.
        found = _walk(tree_cache, req, prompt, req._compute_max_prefix_len(len(prompt)))
        device = int(found.device_prefix_len)
        return device, device + int(found.host_hit_length)

    return match


def use_of_paused(tree_cache: Tree, table: StreamTable[Any]) -> Callable[[int], None]:
    """Has the tree count as used now what it has of a slot's stream, prompt and output."""

    def touch(slot: int) -> None:
        req = table.request(slot)
        if req is not None and req.positional_embed_overrides is None:
            _walk(tree_cache, req, req.origin_input_ids + req.output_ids)

    return touch


def _walk(tree_cache: Tree, req: Req, tokens: Any, limit: int | None = None) -> Any:
    key = RadixKey(tokens, extra_key=req.extra_key, limit=limit, cache_salt=req.cache_salt)
    return tree_cache.match_prefix(MatchPrefixParams(key=key))
