"""Digests of what ranks decide and do: equal for the same, and the first difference is named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fakes.engine import add, core_of
from fakes.sglang import Batch, Request, Scheduler

from tokenflow_sgl.contract import Cause, Decision, Mode, Phase, Preempt
from tokenflow_sgl.engine.agreement import Agreement, RanksDisagreeError
from tokenflow_sgl.engine.shared_clock import ClockTick


def request(rid: str) -> Request:
    return Request(rid, made=0)


class Rank:
    """One rank's core, with these streams, as far as passes are compared."""

    def __init__(
        self,
        *rids: str,
        rank: int = 0,
        now: float = 1.0,
        free: int = 100,
        waiting: tuple[str, ...] = (),
        paused: tuple[str, ...] = (),
        draining: tuple[str, ...] = (),
    ) -> None:
        self.agreement = Agreement(rank)
        self.free = free
        scheduler: Any = Scheduler(lambda: self.free, waiting_queue=[*map(request, waiting)])
        self.core = core_of(scheduler, agreement=self.agreement)
        for rid in rids:
            add(self.core.book, request(rid), now=0.0, arrival=0.0)
        self.core.book.clock.receive(ClockTick(now, 0, 1.0, 1.0))
        pauser = self.core.body.pauser
        pauser.paused |= dict.fromkeys(map(request, paused))
        pauser.draining += map(request, draining)

    def passes(self, plan: Any, decision: Decision | None = None) -> Rank:
        if decision is not None:
            self.agreement.decided(decision)
        self.core.launched(plan)
        return self


def plan_of(*rids: str) -> Any:
    batch: Any = Batch(*map(request, rids))
    batch.forward_mode = SimpleNamespace(name="DECODE", is_decode=lambda: True)
    batch.seq_lens_cpu, batch.is_extend_in_batch = None, False
    return SimpleNamespace(batch_to_run=batch if rids else None, running_batch=batch)


def test_ranks_that_do_the_same_agree() -> None:
    leader, follower = (
        Rank("a", "b", rank=rank).passes(plan_of("a", "b"), Decision(Mode.IDLE)) for rank in (0, 1)
    )
    for _ in range(3):
        follower.agreement.compare(leader.agreement.report())
        for each in (leader, follower):
            each.passes(plan_of("a"), Decision(Mode.WORKING_SET, run=(1, 0)))


DIFFERENT: dict[str, tuple[dict[str, Any], Any]] = {
    "clock": ({"now": 2.0}, plan_of("a")),
    "batch": ({}, plan_of()),
    "running": ({}, plan_of("b")),
    "preempted": ({"paused": ("a",)}, plan_of("a")),
    "waiting": ({"waiting": ("a",)}, plan_of("a")),
    "free memory": ({"free": 99}, plan_of("a")),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_differs_is_named(what) -> None:
    given, plan = DIFFERENT[what]
    assert_named(what, Rank("a", rank=1, **given).passes(plan))


def test_what_drains_there_only_is_named() -> None:
    assert_named("preempted", Rank("a", rank=1, draining=("a",)).passes(plan_of("a")))


def test_another_stream_is_named() -> None:
    assert_named("streams", Rank("b", "a", rank=1).passes(plan_of("a")))


def test_a_stream_in_another_phase_is_named() -> None:
    follower = Rank("a", rank=1)
    follower.core.table.phases.move(0, Phase.PAUSED, 1.0)
    assert_named("streams", follower.passes(plan_of("a")))


def assert_named(what: str, follower: Rank) -> None:
    leader = Rank("a").passes(plan_of("a"))
    with pytest.raises(RanksDisagreeError, match=f"pass 1: rank 1, in its pass 1.*{what}"):
        follower.agreement.compare(leader.agreement.report())


def test_another_order_of_victims_is_another_decision() -> None:
    victims = tuple(Preempt(slot, Cause.POLICY) for slot in (3, 4))
    leader, follower = (
        Rank(rank=rank).passes(plan_of(), Decision(Mode.WORKING_SET, preempt=order))
        for rank, order in enumerate((victims, victims[::-1]))
    )
    with pytest.raises(RanksDisagreeError, match="has another decision than rank 0"):
        follower.agreement.compare(leader.agreement.report())


def test_a_rank_that_is_a_pass_behind_is_named() -> None:
    leader, follower = (Rank("a", rank=rank).passes(plan_of("a")) for rank in (0, 1))
    leader.passes(plan_of("a"))
    with pytest.raises(RanksDisagreeError, match="in pass 2: rank 1, in its pass 1"):
        follower.agreement.compare(leader.agreement.report())


def test_a_difference_of_long_ago_is_still_one() -> None:
    leader, follower = (Rank("a", rank=rank).passes(plan_of("a")) for rank in (0, 1))
    for free, each in enumerate((leader, follower)):
        each.free = free
        each.passes(plan_of("a"))
        each.free = 100
        each.passes(plan_of("a"))
    with pytest.raises(RanksDisagreeError, match="another free memory than"):
        follower.agreement.compare(leader.agreement.report())


def test_a_rank_compares_itself_when_the_leaders_clock_comes() -> None:
    leader, follower = (Rank("a", rank=rank).passes(plan_of("a")) for rank in (0, 1))
    leaders = leader.agreement.report()
    follower.core.tick(ClockTick(2.0, 0, passes=leaders))
    assert follower.core.book.clock.now == 2.0
    follower.passes(plan_of("a"))
    with pytest.raises(RanksDisagreeError, match="in pass 1: rank 1, in its pass 2"):
        follower.core.tick(ClockTick(3.0, 0, passes=leaders))
    assert follower.core.book.clock.now == 2.0
