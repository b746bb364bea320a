"""Which waiting prompts a pass looks up, and what is known of the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.lifecycle import CachedPrefixes, Phases
from tokenflow_sgl.lifecycle.cached_prefixes import AGAIN, LOOKS


class Tree:
    """Knows a prefix of each slot, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.device = 0

    def __call__(self, slot: int) -> tuple[int, int]:
        self.asked.append(slot)
        return self.device + slot, self.device + 2 * slot

    def told(self) -> list[int]:
        """The slots of this pass."""
        asked, self.asked = self.asked, []
        return asked


@pytest.fixture
def tree() -> Tree:
    return Tree()


def queue(count: int) -> Phases:
    phases = Phases(1)
    phases.grow(count)
    for slot in range(count):
        phases.arrive(slot, 0.0)
    return phases


def everyone(phases: Phases) -> np.ndarray:
    return np.arange(len(phases))


def test_what_comes_is_looked_up_at_once_the_earliest_last(tree) -> None:
    phases = queue(5)
    phases.move(3, Phase.RUNNING, 0.0)
    cached = CachedPrefixes(phases, tree)
    cached.look(everyone(phases))
    assert tree.told() == [4, 2, 1, 0]
    device, reach = cached.of(everyone(phases))
    assert device.tolist() == [0, 1, 2, 0, 4]
    assert reach.tolist() == [0, 2, 4, 0, 8]


def test_a_pass_looks_up_a_few_and_the_next_ones_the_others(tree) -> None:
    phases = queue(2 * LOOKS + 3)
    cached = CachedPrefixes(phases, tree)
    seen: list[int] = []
    for count in (LOOKS, LOOKS, 3, 0):
        cached.look(everyone(phases))
        told = tree.told()
        assert len(told) == count
        seen = [*told, *seen]
    assert sorted(seen) == everyone(phases).tolist()
    assert set(seen[-LOOKS:]) == set(range(LOOKS)), "in order of arrival"


def test_each_is_looked_up_again_after_a_while(tree) -> None:
    phases = queue(1)
    cached = CachedPrefixes(phases, tree)
    for number in range(2 * AGAIN + 1):
        tree.device = number
        cached.look(everyone(phases))
        assert cached.of(everyone(phases))[0][0] == number // AGAIN * AGAIN
    assert len(tree.told()) == 3


def test_what_has_waited_longest_for_a_look_goes_first(tree) -> None:
    phases = queue(LOOKS)
    cached = CachedPrefixes(phases, tree)
    cached.look(everyone(phases))
    for _ in range(AGAIN - 1):
        cached.look(everyone(phases))
    tree.told()
    phases.grow(2 * LOOKS + 1)
    for slot in range(LOOKS, 2 * LOOKS + 1):
        phases.arrive(slot, 1.0)
    cached.look(everyone(phases))
    assert set(tree.told()) == set(range(LOOKS, 2 * LOOKS)), "the new ones, though others are due"
    cached.look(everyone(phases))
    assert set(tree.told()) == {2 * LOOKS, *range(LOOKS - 1)}


def test_the_next_stream_of_a_slot_starts_afresh(tree) -> None:
    phases = queue(2)
    cached = CachedPrefixes(phases, tree)
    cached.look(everyone(phases))
    phases.leave(1)
    phases.arrive(1, 0.0)
    assert cached.of(everyone(phases))[1].tolist() == [0, 0]
    tree.told()
    cached.look(everyone(phases))
    assert tree.told() == [1]
    assert cached.of(everyone(phases))[1].tolist() == [0, 2]


def test_of_a_stream_that_no_longer_waits_nothing_is_said(tree) -> None:
    phases = queue(2)
    cached = CachedPrefixes(phases, tree)
    cached.look(everyone(phases))
    phases.move(1, Phase.RUNNING, 1.0)
    assert cached.of(np.array([1]))[1].tolist() == [0]


@given(st.lists(st.sampled_from(["arrive", "leave", "look"]), max_size=120))
def test_two_ranks_look_at_the_same(steps) -> None:
    """Whatever comes and goes: the same passes over the same slots ask for the same prompts."""
    ranks = [(Phases(1), Tree()) for _ in range(2)]
    both = [(phases, tree, CachedPrefixes(phases, tree)) for phases, tree in ranks]
    here: list[int] = []
    for step in steps:
        slot = min(set(range(len(here) + 1)) - set(here))
        for phases, _, cached in both:
            if step == "arrive":
                phases.grow(max(len(phases), slot + 1))
                phases.arrive(slot, 0.0)
            elif step == "leave" and here:
                phases.leave(here[0])
            elif step == "look":
                cached.look(np.array(here, dtype=np.int64))
        if step == "arrive":
            here.append(slot)
        elif step == "leave" and here:
            here.pop(0)
    assert ranks[0][1].asked == ranks[1][1].asked
    for _, _, cached in both:
        assert len(cached.of(np.array(here, dtype=np.int64))[0]) == len(here)
