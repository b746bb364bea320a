"""Block groups under random traffic: books balance, no page has two owners, nothing fails early."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tokenflow_sgl.offload.block_groups import BlockGroups
from tokenflow_sgl.offload.free_runs import FreeRuns

PAGES, GROUP, OWNERS = 96, 8, 6


def pieces(pages: np.ndarray) -> int:
    """Runs of consecutive pages, in the order in which they are used."""
    return 1 + int((np.diff(pages) != 1).sum())


class Traffic(RuleBasedStateMachine):
    """Streams that grow, step, pause and end; every page that is handed out is written down."""

    make = BlockGroups

    def __init__(self) -> None:
        super().__init__()
        self.books = [self.make(PAGES, GROUP) for _ in range(2)]  # the same on two ranks
        self.held: dict[int, list[int]] = {owner: [] for owner in range(OWNERS)}
        self.loose: list[int] = []

    def both(self, verb: str, *given: object) -> np.ndarray:
        one, other = (getattr(book, verb)(*given) for book in self.books)
        np.testing.assert_array_equal(one, other)
        return one

    @property
    def used(self) -> list[int]:
        return [*(page for pages in self.held.values() for page in pages), *self.loose]

    @rule(owner=st.integers(0, OWNERS - 1), likely=st.integers(0, 20), certain=st.integers(0, 20))
    def expect(self, owner: int, likely: int, certain: int) -> None:
        for book in self.books:
            book.expect(owner, likely, certain)

    @rule(owner=st.integers(0, OWNERS - 1), share=st.floats(0.0, 1.0))
    def grow(self, owner: int, share: float) -> None:
        """Any number that is available is had."""
        count = int(share * self.books[0].available)
        pages = self.both("grow", owner, count).tolist()
        assert len(pages) == count
        self.held[owner] += pages

    @rule(owners=st.sets(st.integers(0, OWNERS - 1)))
    def step(self, owners: set[int]) -> None:
        chosen = sorted(owners)[: self.books[0].available]
        pages = self.both("step", np.array(chosen, dtype=np.int64))
        for owner, page in zip(chosen, pages.tolist(), strict=True):
            self.held[owner].append(page)

    @rule(share=st.floats(0.0, 1.0))
    def take_loose(self, share: float) -> None:
        self.loose += self.both("loose", int(share * self.books[0].available)).tolist()

    @rule(owner=st.integers(0, OWNERS - 1), forgotten=st.booleans())
    def end(self, owner: int, forgotten: bool) -> None:
        """Its pages are freed, as a tree does: in any order; its group is closed."""
        for book in self.books:
            book.give(np.array(self.held[owner][::-1], dtype=np.int64))
            (book.forget if forgotten else book.close)(owner)
        self.held[owner] = []

    @rule(owner=st.integers(0, OWNERS - 1))
    def pause(self, owner: int) -> None:
        """Its pages stay in the tree, and its group is closed."""
        for book in self.books:
            book.close(owner)
            assert book.set_aside(owner) == 0

    @precondition(lambda self: self.loose)
    @rule(count=st.integers(1, PAGES))
    def give_loose(self, count: int) -> None:
        for book in self.books:
            book.give(np.array(self.loose[:count], dtype=np.int64))
        del self.loose[:count]

    @invariant()
    def books_balance(self) -> None:
        used = self.used
        assert len(set(used)) == len(used), "a page has two owners"
        free = set(range(1, PAGES + 1)) - set(used)
        for book in self.books:
            assert set(book.free_pages().tolist()) == free
            assert book.available == len(free)

    @invariant()
    def all_is_one_run_once_all_is_given(self) -> None:
        """What merges not at once merges never: no run ends where another begins."""
        for book in self.books:
            runs = list(book._runs)
            assert sum(pages for _, pages in runs) == book._runs.free
            behind = {start + pages for start, pages in runs}
            assert not behind & {start for start, _ in runs}

    def teardown(self) -> None:
        for book in self.books:
            book.give(np.array(self.used, dtype=np.int64))
            for owner in range(OWNERS):
                book.close(owner)
            assert list(book._runs) == [(1, PAGES)]


Traffic.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTraffic = Traffic.TestCase


class _Forgetful(BlockGroups):
    """Splits the rest of a group and leaves it to its owner, too."""

    def _split(self, want: int) -> None:
        ends = self._end.copy()
        super()._split(want)
        self._end = ends


def test_the_state_machine_notices_a_page_with_two_owners() -> None:
    """Driven to where memory is short: the machine's own invariant fails."""
    broken = type("Broken", (Traffic,), {"make": _Forgetful})()
    broken.expect(0, GROUP, 0)
    broken.grow(0, 0.5)
    assert broken.books[0].set_aside(0)
    broken.take_loose(0.9)
    with pytest.raises(AssertionError, match="two owners"):
        for _ in range(broken.books[0].available):
            broken.held[0] += broken.both("grow", 0, 1).tolist()
            broken.books_balance()


def test_streams_that_decode_together_have_their_pages_in_runs() -> None:
    book = BlockGroups(1000, 50)
    owners = np.arange(4)
    held = [[*book.grow(owner, 20)] for owner in owners.tolist()]
    for _ in range(60):
        for pages, page in zip(held, book.step(owners).tolist(), strict=True):
            pages.append(page)
    # The prompt and 50 of a group, and the next group.
    assert [pieces(np.array(pages)) for pages in held] == [2, 2, 2, 2]


def test_a_prompt_in_chunks_is_one_run() -> None:
    book = BlockGroups(1000, 10)
    book.expect(0, 10, certain=90)
    first = book.grow(0, 30)
    book.grow(1, 100)
    pages = np.concatenate([first, *(book.grow(0, 30) for _ in range(3))])
    assert pieces(pages) == 1


def test_a_stream_goes_on_where_it_was_paused_if_that_is_free() -> None:
    book = BlockGroups(100, 10)
    pages = book.grow(0, 5)
    book.close(0)
    assert pieces(np.concatenate([pages, book.grow(0, 5)])) == 1
    book.close(0)
    book.loose(book.available - 10)
    book.give(np.array([50]))
    assert book.grow(0, 1)[0] != 11, "another has that page"


def test_a_group_is_as_large_as_what_is_expected_and_no_larger_than_a_share() -> None:
    book = BlockGroups(1000, 50)
    for owner, (likely, aside) in enumerate([(7, 7), (0, 0), (500, 50)]):
        book.expect(owner, likely)
        book.grow(owner, 10)
        assert book.set_aside(owner) == aside
    book.loose(800)
    in_none = book.available - book.set_aside(0) - book.set_aside(2)
    book.expect(3, 500)
    book.grow(3, 1)
    assert book.set_aside(3) == (in_none - 1) // 4


def test_while_memory_is_short_a_group_has_half_of_its_even_share() -> None:
    book = BlockGroups(100, 50)
    book.expect(0, 50)
    book.grow(0, 10)
    book.loose(100 - 10 - 22 - 18)
    assert (book.available, book.set_aside(0)) == (40, 22)
    book.grow(1, 4)
    assert book.set_aside(1) == (40 - 4) // (2 * 2), "more than a fourth of what is in no group"


def test_the_largest_rest_of_a_group_is_split_when_no_run_is_as_large() -> None:
    book = BlockGroups(100, 20)
    book.grow(0, 10)
    book.loose(70)
    assert (book.available, book.set_aside(0)) == (20, 20)
    book.grow(1, 1)
    assert book.set_aside(0) == 10
    assert book.set_aside(1) == 19 // 4
    assert book.available == 19
    assert len(book.grow(1, 19)) == 19
    assert book.available == book.set_aside(0) == 0
    with pytest.raises(ValueError, match="1 pages are asked for; allowed are the 0 free"):
        book.grow(1, 1)


@pytest.mark.parametrize("pages", [[3, 3], [4], [0], [101], [-1]])
def test_pages_that_are_not_in_use_are_not_freed(pages: list[int]) -> None:
    book = BlockGroups(100, 10)
    book.loose(3)
    with pytest.raises(ValueError, match="are freed; allowed are pages in use, once"):
        book.give(np.array(pages))


@pytest.mark.parametrize(("pages", "group", "name"), [(0, 1, "pages"), (1, 0, "group")])
def test_bad_sizes_are_named(pages: int, group: int, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0; allowed is 1 or more"):
        BlockGroups(pages, group)


def test_a_run_that_fits_is_split_and_not_the_largest() -> None:
    runs = FreeRuns()
    runs.give(1, 100)
    runs.give(200, 16)
    assert runs.take(10) == (200, 10)
    assert runs.take(90) == (1, 90)
    assert runs.take(90) == (91, 10), "the largest that is left"
    assert [runs.take(4), runs.take(4), runs.take(1)] == [(210, 4), (214, 2), (0, 0)]


def test_heaps_do_not_keep_what_is_gone() -> None:
    runs = FreeRuns()
    runs.give(1, 8)
    for start in range(20, 40_000, 4):  # runs of one page, none of which is taken from its heap
        runs.give(start, 1)
        runs.give(start + 1, 1)
    assert len(runs) == 1 + len(range(20, 40_000, 4))
    assert sum(map(len, runs._heaps)) < 3 * len(runs)
