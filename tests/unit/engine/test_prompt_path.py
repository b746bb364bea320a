"""Names of what prompts begin with: equal for equal tokens, and only for these."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.engine.kv.prompt_path import GROWTH, STRETCH, prompt_path


def paths(page: int, *prompts: Any, **more: Any) -> list[tuple[list[Any], list[int]]]:
    requests = [
        SimpleNamespace(
            **{
                "origin_input_ids": prompt,
                "extra_key": None,
                "cache_salt": None,
                "positional_embed_overrides": None,
                **more,
            }
        )
        for prompt in prompts
    ]
    table: Any = SimpleNamespace(request=lambda slot: requests[slot])
    path = prompt_path(table, page)
    return [path(slot) for slot in range(len(requests))]


def common(one: tuple[list[Any], list[int]], other: tuple[list[Any], list[int]]) -> int:
    """Tokens of the stretches with which both begin."""
    total = 0
    for name, again, length in zip(one[0], other[0], one[1], strict=False):
        if name != again:
            break
        total += length
    return total


@given(
    shared=st.integers(0, 40_000),
    rest=st.tuples(st.integers(0, 500), st.integers(0, 500)),
    page=st.sampled_from([1, 16, 64, 100, 256]),
)
def test_little_of_what_two_prompts_share_is_missed(shared, rest, page) -> None:
    beginning = np.arange(shared) % 1000
    one = array("q", [*beginning.tolist(), *[1001] * rest[0]])
    other = [*beginning.tolist(), *[1002] * rest[1]]
    found = common(*paths(page, one, other))
    unit = -(-STRETCH // page) * page
    assert found % page == 0
    assert shared - max(unit, found // GROWTH) - unit < found <= shared


def test_long_prompts_have_few_stretches() -> None:
    ((names, lengths),) = paths(1, array("q", range(100_000)))
    assert len(names) == len(set(names)) == len(lengths) < 80
    assert sum(lengths) > 0.85 * 100_000


@pytest.mark.parametrize("more", [{"extra_key": "lora"}, {"cache_salt": "mine"}])
def test_what_sglang_keeps_apart_has_other_names(more) -> None:
    prompt = array("q", range(1000))
    assert common(*paths(1, prompt), *paths(1, prompt)) == sum(paths(1, prompt)[0][1])
    assert common(*paths(1, prompt), *paths(1, prompt, **more)) == 0


def test_what_is_not_cached_is_not_named() -> None:
    prompt = array("q", range(1000))
    assert paths(1, prompt, positional_embed_overrides=object()) == [((), ())]
    gone: Any = SimpleNamespace(request=lambda slot: None)
    assert prompt_path(gone, 1)(0) == ((), ())
