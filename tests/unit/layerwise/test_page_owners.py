"""Whose each page is: streams that begin alike, rest and end."""

from __future__ import annotations

import numpy as np
import pytest

from tokenflow_sgl.engine.layerwise.page_owners import TREE, PageOwners

NOTHING: frozenset[int] = frozenset()


def pages(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


@pytest.fixture
def owners() -> PageOwners:
    """Two streams that run and begin alike, with two and one page of their own."""
    made = PageOwners(12)
    assert made.read(1, pages(1, 2, 3, 4), NOTHING).size == 0, "new pages had no owner"
    assert made.read(2, pages(1, 2, 5), NOTHING).size == 0, "the other one has them"
    return made


def test_what_streams_share_is_counted_for_one_of_them(owners) -> None:
    assert owners.owned([1, 2, 3]).tolist() == [4, 1, 0]
    assert owners.count(pages(2, 4, 5), [2, 1]).tolist() == [1, 2]
    assert owners.shared(owners.read_by(2), NOTHING, 2) == 2
    assert owners.shared(owners.read_by(1), NOTHING, 1) == 0
    assert owners.shared(pages(1, 5, 9), NOTHING) == 2, "of a stream that has not begun"


def test_the_next_one_owns_what_a_stream_leaves(owners) -> None:
    owners.freed(pages(3, 4))  # SGLang keeps the beginning
    owners.left([1])
    assert owners.of_tree().tolist() == [1, 2]
    assert owners.read_by(1).size == 0
    assert owners.shared(owners.read_by(2), NOTHING, 2) == 0
    assert owners.read(2, pages(1, 2, 5, 6), NOTHING).tolist() == [1, 2]
    assert owners.owned([2]).tolist() == [4]
    assert owners.of_tree().size == 0


def test_a_row_may_be_another_streams(owners) -> None:
    owners.left([1])
    assert owners.read(1, pages(7), NOTHING).size == 0
    assert owners.owned([1]).tolist() == [1]
    assert owners.row[[1, 2, 3, 4]].tolist() == [TREE] * 4


def test_what_has_ended_shares_with_no_one(owners) -> None:
    """Also before the next step, when what follows is admitted."""
    owners.left([1])
    assert owners.shared(pages(1, 2, 3, 9), NOTHING) == 0
    assert owners.shared(owners.read_by(2), NOTHING, 2) == 0


def test_a_stream_that_rests_gives_up_what_another_reads(owners) -> None:
    assert owners.shared(pages(1, 2), frozenset({1})) == 0
    assert owners.read(2, pages(1, 2, 5), frozenset({1})).tolist() == [1, 2]
    assert owners.owned([1, 2]).tolist() == [2, 3]
    # Resumed, it finds the other one running.
    assert owners.read(1, pages(1, 2, 3, 4), NOTHING).size == 0
    assert owners.owned([1, 2]).tolist() == [2, 3]


def test_the_tree_has_had_some_for_longer(owners) -> None:
    owners.left([2])
    owners.left([1])
    assert owners.longest_first(owners.of_tree()).tolist() == [5, 1, 2, 3, 4]
    owners.left([])
    owners.freed(pages(5, 2))
    assert owners.of_tree().tolist() == [1, 3, 4]
