"""Room beside copies under random traffic: no page twice, none lost, nothing fails early."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tokenflow_sgl.offload.block_groups import BlockGroups
from tokenflow_sgl.offload.copy_room import CopyRoom

PAGES, GROUP = 64, 6


class Traffic(RuleBasedStateMachine):
    """A tree's copies grow, branch and are evicted in any order; names come back like a tree's."""

    def __init__(self) -> None:
        super().__init__()
        self.rooms = [CopyRoom(PAGES, GROUP) for _ in range(2)]  # the same on two ranks
        self.copies: dict[int, list[int]] = {}
        self.others: list[list[int]] = []

    def both(self, verb: str, *given: object) -> list[int]:
        one, other = (getattr(room, verb)(*given) for room in self.rooms)
        np.testing.assert_array_equal(one, other)
        return one.tolist()

    @property
    def used(self) -> list[int]:
        return [page for pages in (*self.copies.values(), *self.others) for page in pages]

    @precondition(lambda self: self.rooms[0].available)
    @rule(name=st.integers(0, 30), before=st.integers(0, 30), share=st.floats(0.0, 1.0))
    def write(self, name: int, before: int, share: float) -> None:
        """Any number that is available is had, whatever is set aside, and whose name it has."""
        count = max(int(share * self.rooms[0].available), 1)
        pages = self.both("continue_copy", name, before, count)
        assert len(pages) == count
        if name in self.copies:  # a name that two copies have
            self.others.append(self.copies.pop(name))
        self.copies[name] = pages

    @rule(share=st.floats(0.0, 1.0))
    def fetch(self, share: float) -> None:
        self.others.append(self.both("take", int(share * self.rooms[0].available)))

    @precondition(lambda self: self.copies)
    @rule(chance=st.randoms(use_true_random=False), some=st.integers(1, 40))
    def evict(self, chance, some: int) -> None:
        """A copy, or a part of it: a node that was split has been evicted in halves."""
        name = chance.choice(sorted(self.copies))
        pages = self.copies.pop(name)
        chance.shuffle(pages)
        self.free(pages[:some])
        if pages[some:]:
            self.others.append(pages[some:])

    @precondition(lambda self: self.others)
    @rule()
    def give_back(self) -> None:
        self.free(self.others.pop(0))

    def free(self, pages: list[int]) -> None:
        for room in self.rooms:
            room.give(np.array(pages, dtype=np.int64))

    @invariant()
    def books_balance(self) -> None:
        used = self.used
        assert len(set(used)) == len(used), "no page in two hands"
        for room in self.rooms:
            assert room.available == PAGES - len(used)
            free = set(room.free_pages().tolist())
            assert free == set(range(1, PAGES + 1)) - set(used), "none is lost"
            assert len(room._last) <= len(used), "names of what is gone are forgotten"
            assert len(room._owner_at) == room._owners - len(room._unused)


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class _Forgetful(BlockGroups):
    """Splits what is set aside and leaves it to the copy before it, too."""

    def _split(self, want: int) -> None:
        ends = self._end.copy()
        super()._split(want)
        self._end = ends


def test_the_state_machine_notices_a_page_in_two_hands() -> None:
    """Driven to where room is short: the machine's own invariant fails."""
    case = Traffic()
    for room in case.rooms:
        room._book = _Forgetful(PAGES, GROUP)
    case.write(1, 0, 0.5)
    assert case.rooms[0].set_aside(1)
    case.fetch(1.0 - 2 / PAGES)
    with pytest.raises(AssertionError, match="no page in two hands"):
        for name in range(2, PAGES):
            case.write(name, name - 1, 0.0)
            case.books_balance()


def runs(*parts: np.ndarray) -> int:
    return 1 + int((np.diff(np.concatenate(parts)) != 1).sum())


def test_copies_that_grow_in_turns_stay_whole() -> None:
    room = CopyRoom(10_000, 100)
    copies = {stream: [room.continue_copy(stream, 0, 50)] for stream in range(1, 9)}
    for step in range(20):
        for stream, copy in copies.items():
            before = stream + 100 * step
            copy.append(room.continue_copy(before + 100, before, 10))
    # 250 pages: the prompt and a group, and two more groups.
    assert {runs(*copy) for copy in copies.values()} <= {1, 2, 3}


def test_the_next_turn_goes_on_beside_the_copy_of_the_last_one() -> None:
    room = CopyRoom(1000, 20)
    first = room.continue_copy(1, 0, 30)
    assert room.set_aside(1) == 20
    room.take(400)
    assert runs(first, room.continue_copy(2, 1, 15)) == 1
    assert room.set_aside(1) == 0
    assert room.set_aside(2) == 5


def test_a_second_turn_from_the_same_place_lies_elsewhere() -> None:
    room = CopyRoom(1000, 20)
    first = room.continue_copy(1, 0, 30)
    taken, branch = room.continue_copy(2, 1, 10), room.continue_copy(3, 1, 10)
    assert (runs(first, taken), runs(first, branch)) == (1, 2)
    room.give(taken)
    assert runs(first, room.continue_copy(4, 1, 10)) == 1, "what follows it is free again"


def test_room_is_given_back_with_the_copy_that_it_is_beside() -> None:
    room = CopyRoom(100, 20)
    pages = room.continue_copy(1, 0, 10)
    assert room.set_aside(1) == 20
    room.give(pages[-1:])
    assert room.set_aside(1) == 0
    room.give(pages[:-1])
    assert runs(room.take(100)) == 1


def test_nothing_is_set_aside_while_room_is_not_ample() -> None:
    room = CopyRoom(100, 20)
    room.take(66)
    room.continue_copy(1, 0, 9)
    assert room.available == 25
    assert room.set_aside(1) > 0
    room.continue_copy(2, 0, 1)
    assert room.set_aside(2) == 0


def test_what_is_set_aside_is_there_for_all_that_is_asked_for() -> None:
    room = CopyRoom(100, 40)
    room.continue_copy(1, 0, 10)
    assert room.set_aside(1) > 0
    assert len(room.take(90)) == 90
    assert room.set_aside(1) == room.available == 0
    with pytest.raises(ValueError, match="1 pages are asked for; allowed are the 0 free"):
        room.continue_copy(2, 1, 1)
