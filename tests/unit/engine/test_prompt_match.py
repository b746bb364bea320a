"""What SGLang's own prefix tree says of a waiting prompt, and what asking it changes."""

from __future__ import annotations

import copy
from array import array
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from tokenflow_sgl.engine.kv.prompt_match import prompt_match, use_of_paused

PAGE = 4


def ids(*stretches: tuple[int, int]) -> array[int]:
    """Token ids: (first, how many) of each stretch."""
    return array("q", [start + i for start, count in stretches for i in range(count)])


def request(prompt: array[int], **given: Any) -> Any:
    req = SimpleNamespace(
        origin_input_ids=prompt,
        extra_key=None,
        cache_salt=None,
        positional_embed_overrides=None,
        dllm_config=None,
        return_logprob=False,
        logprob_start_len=-1,
        is_dllm=lambda: False,
    )
    vars(req).update(given)
    req._compute_max_prefix_len = lambda length: Req._compute_max_prefix_len(req, length)
    return req


@pytest.fixture
def tree() -> UnifiedRadixCache:
    """With 100 tokens from 1000 on."""
    allocator = SimpleNamespace(
        device="cpu",
        page_size=PAGE,
        free=lambda *_: None,
        free_segment=lambda *_, **__: None,
        get_kvcache=lambda: None,
    )
    made = UnifiedRadixCache(
        CacheInitParams(
            disable=False,
            req_to_token_pool=None,  # type: ignore[arg-type]
            token_to_kv_pool_allocator=allocator,  # type: ignore[arg-type]
            page_size=PAGE,
            tree_components=(ComponentType.FULL,),
        )
    )
    known = ids((1000, 100))
    made.insert(InsertParams(key=RadixKey(known), value=torch.arange(len(known))))
    return made


def match(tree: Any, req: Any) -> tuple[int, int]:
    return prompt_match(tree, SimpleNamespace(request=lambda slot: req))(7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("req", "found"),
    [
        (request(ids((1000, 100), (5, 50))), 100),
        (request(ids((1000, 50), (5, 50))), 48),  # whole pages
        (request(ids((1000, 100))), 96),  # the last token is computed
        (request(ids((5, 100))), 0),
        (request(ids((1000, 100), (5, 50)), cache_salt="another user's"), 0),
        (request(ids((1000, 100), (5, 50)), extra_key="another adapter"), 0),
        (request(ids((1000, 100), (5, 50)), positional_embed_overrides={}), 0),
        (request(ids((1000, 100), (5, 50)), return_logprob=True, logprob_start_len=20), 20),
        (None, 0),
    ],
)
def test_it_finds_what_the_prefill_will(tree, req, found) -> None:
    assert match(tree, req) == (found, found)


def test_asking_leaves_request_and_memory_as_they_are(tree) -> None:
    req = request(ids((1000, 50), (5, 50)))
    before = copy.copy(vars(req)), tree.total_size(), tree.evictable_size(), tree.protected_size()
    assert match(tree, req) == (48, 48)
    after = vars(req), tree.total_size(), tree.evictable_size(), tree.protected_size()
    assert after == before
    # And the whole of what was there is still found, in two nodes now.
    assert match(tree, request(ids((1000, 100), (5, 50)))) == (100, 100)


def test_what_is_on_the_host_comes_behind_the_device() -> None:
    found = SimpleNamespace(device_prefix_len=64, host_hit_length=32)
    asked = []
    tree = SimpleNamespace(match_prefix=lambda params: asked.append(params) or found)
    assert match(tree, request(ids((1, 200)))) == (64, 96)
    assert asked[0].req is None, "nothing is adopted"


def test_what_a_paused_stream_has_is_evicted_last(tree) -> None:
    paused = request(ids((1000, 60)), output_ids=ids((1060, 40)))
    tree.insert(InsertParams(key=RadixKey(ids((5, 100))), value=torch.arange(100)))
    use_of_paused(tree, SimpleNamespace(request=lambda slot: paused))(7)  # type: ignore[arg-type]
    tree.evict(EvictParams(num_tokens=100))
    assert match(tree, request(ids((1000, 100), (5, 9)))) == (100, 100)
    assert match(tree, request(ids((5, 100), (5, 9)))) == (0, 0)


def test_a_stream_that_has_gone_is_no_use(tree) -> None:
    use_of_paused(tree, SimpleNamespace(request=lambda slot: None))(7)  # type: ignore[arg-type]
