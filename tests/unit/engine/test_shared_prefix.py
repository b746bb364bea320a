"""Who fetches what two stored prefixes share: the first one, and no page of it twice."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.engine.restore.shared_prefix import leader_of

PAGE = 16


def keys(tokens: list[int]) -> list[str]:
    """Chained, as SGLang's."""
    made, before = [], ""
    for token in tokens:
        before = f"{before}/{token}"
        made.append(before)
    return made


def restoration(pages: list[int], *, start: int = 0, cut: int = 0, **other: Any) -> Any:
    """Of a prompt that has these pages in the storage, the first `start` of them on the host.

    cut: pages behind them for which there was no host memory.
    """
    operation = SimpleNamespace(hash_value=keys(pages)[start + cut :][::-1])
    known = {"allocated": True, "may_lead": True, "start": start * PAGE, "end": len(pages) * PAGE}
    tail = SimpleNamespace(batch=2)
    return SimpleNamespace(operation=operation, tail=tail, **(known | other))


A = [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("pages", "shared"),
    [
        (A, 6),
        (A[:4], 4),
        ([*A, 7, 8], 6),
        ([1, 2, 3, 9, 9, 9], 3),
        ([1, 9, 3, 4, 5, 6], 0),  # a page: not worth waiting for
        ([9, 2, 3, 4, 5, 6], 0),  # the same pages behind others are others
    ],
)
def test_what_begins_alike_is_fetched_once(pages, shared) -> None:
    first = restoration(A)
    leader, tokens = leader_of(restoration(pages), [first], PAGE)
    assert tokens == shared * PAGE
    assert (leader is first) == bool(shared)


def test_the_one_that_brings_most_is_waited_for() -> None:
    some, most, other = restoration(A[:3]), restoration(A[:5]), restoration([9, 9])
    assert leader_of(restoration(A), [some, most, other], PAGE) == (most, 5 * PAGE)


@pytest.mark.parametrize("what", [{"allocated": False}, {"may_lead": False}])
def test_what_brings_nothing_is_not_waited_for(what) -> None:
    assert leader_of(restoration(A), [restoration(A, **what)], PAGE) == (None, 0)


def test_what_the_host_has_already_does_not_count() -> None:
    assert leader_of(restoration(A, start=5), [restoration(A, start=4)], PAGE) == (None, 0)
    first = restoration(A, start=2)
    assert leader_of(restoration(A, start=3), [first], PAGE) == (first, 6 * PAGE)


@given(
    st.lists(st.integers(0, 1), min_size=1, max_size=12),
    st.lists(st.integers(0, 1), min_size=1, max_size=12),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_no_more_is_said_to_be_shared_than_is(one, other, cut, other_cut) -> None:
    asking = restoration(one, cut=min(cut, len(one) - 1))
    first = restoration(other, cut=min(other_cut, len(other) - 1))
    _, tokens = leader_of(asking, [first], PAGE)
    assert one[: tokens // PAGE] == other[: tokens // PAGE]
    pairs = zip(one, other, strict=False)
    most = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    if not cut and not other_cut:
        assert tokens == (most * PAGE if most >= 2 else 0)
