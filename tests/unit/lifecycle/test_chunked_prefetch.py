"""Prefetches in chunks over any course of events: the books balance, and urgency decides."""

from __future__ import annotations

import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tokenflow_sgl.contract import Growth, Phase, Restore, When
from tokenflow_sgl.lifecycle import Missing, Phases
from tokenflow_sgl.lifecycle.prefetch import prefetch
from tokenflow_sgl.offload import DeviceRoom

POOL, STREAMS, PAGE = 1000, 6, 16
NEEDS = 320
"""Tokens of each stream."""
RUNNING = 2


class Body:
    """A pool of tokens; what is given up is evicted at once."""

    def __init__(self) -> None:
        self.used = 0  # by running streams
        self.loaded = dict.fromkeys(range(STREAMS), 0)
        self.flying: int | None = None

    @property
    def room(self) -> DeviceRoom:
        free = POOL - self.used - sum(self.loaded.values())
        return DeviceRoom(free, 0, RUNNING, Growth(PAGE))

    @property
    def prefetching(self) -> bool:
        return self.flying is not None

    def missing(self, slot: int) -> Missing:
        return Missing(NEEDS - self.loaded[slot])

    def load(self, slot: int, tokens: int) -> int:
        assert tokens <= self.room.for_prefetch, "running streams keep their reserve"
        assert tokens % PAGE == 0
        self.loaded[slot] += tokens
        self.flying = slot
        return tokens

    def give_up(self, slot: int) -> None:
        self.loaded[slot] = 0

    def copying(self, slot: int) -> bool:
        return slot == self.flying


class Prefetches(RuleBasedStateMachine):
    """Plans change, memory comes and goes, streams are aborted, copies land late."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Body()
        self.phases = Phases(STREAMS)
        for slot in range(STREAMS):
            self.arrives(slot)

    def arrives(self, slot: int) -> None:
        self.phases.arrive(slot, 0.0)
        self.phases.move(slot, Phase.PAUSED, 0.0)

    @rule(
        plan=st.lists(st.integers(0, STREAMS - 1), unique=True),
        part=st.sampled_from([0, PAGE, 5 * PAGE]),
    )
    def decide(self, plan: list[int], part: int) -> None:
        wanted = [Restore(slot, when=When.AHEAD, part=part) for slot in plan]
        busy = self.body.prefetching
        phases = self.phases

        def possible(restore: Restore) -> bool:
            return phases.is_in(restore.slot, Phase.PAUSED) and not phases.ready[restore.slot]

        started = prefetch(wanted, possible, phases, self.body, 1.0)  # type: ignore[arg-type]
        assert set(phases.parts) <= {*plan, self.body.flying}
        if busy:
            assert started is None
        if started is not None:
            slot, tokens = started
            first = next(each for each in plan if self.body.loaded[each] < NEEDS or each == slot)
            assert slot == first, "the most urgent one that lacks something"
            assert tokens >= part or self.body.loaded[slot] == NEEDS
            assert part or self.body.loaded[slot] == NEEDS
        if self.body.room.scarce:
            assert not phases.parts.keys() - {self.body.flying}

    @rule()
    def lands(self) -> None:
        slot, self.body.flying = self.body.flying, None
        if slot is not None and self.phases.is_in(slot, Phase.LOADING):
            self.phases.landed(slot, 2.0)
            assert self.phases.ready[slot] == (self.body.loaded[slot] == NEEDS)

    @rule(slot=st.integers(0, STREAMS - 1))
    def resumes_or_is_aborted(self, slot: int) -> None:
        if self.body.copying(slot):
            return
        self.body.give_up(slot)
        self.phases.leave(slot)
        self.arrives(slot)

    @rule(used=st.integers(0, POOL))
    def others_use(self, used: int) -> None:
        self.body.used = min(used, POOL - sum(self.body.loaded.values()))

    @invariant()
    def books_balance(self) -> None:
        body, phases = self.body, self.phases
        assert body.used + sum(body.loaded.values()) <= POOL
        for slot, tokens in body.loaded.items():
            part = phases.parts.get(slot)
            if part is not None:
                assert (part.loaded, part.loaded + part.to_load) == (tokens, NEEDS)
            else:
                assert tokens in (0, NEEDS)
        assert phases.partly_loaded == sum(part.loaded for part in phases.parts.values())


def test_the_reserve_is_of_this_size() -> None:
    assert Body().room.for_prefetch == POOL - (RUNNING + 1) * Growth(PAGE).headroom


TestPrefetches = Prefetches.TestCase
TestPrefetches.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(
    "broken",
    [
        lambda missing, room, part, page: missing,
        lambda missing, room, part, page: min(missing, max(room, 0)),
        lambda missing, room, part, page: min(missing, max(room // page * page, 0)),
    ],
    ids=["more than there is", "parts of pages", "smaller than it is worth"],
)
def test_another_rule_is_noticed(monkeypatch, broken) -> None:
    monkeypatch.setattr(sys.modules[prefetch.__module__], "chunk", broken)
    # One of what it breaks is enough: several would come as a group of exceptions.
    first = settings(TestPrefetches.settings, report_multiple_bugs=False)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Prefetches, settings=first)
