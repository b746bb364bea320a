"""Digests of what ranks decide and do: equal for the same, and the first difference is named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tokenflow_sgl.contract import Cause, Decision, Mode, Preempt
from tokenflow_sgl.engine.agreement import Agreement, RanksDisagreeError
from tokenflow_sgl.engine.shared_clock import ClockTick, SharedClock
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.policy.predictors import LimitLengths


class Request:
    def __init__(self, rid: str) -> None:
        self.rid = rid
        self.output_ids: list[int] = []


def rank_with(*rids: str, now: float = 1.0, free: int = 100, **other: Any) -> Any:
    """As much of a scheduler as is looked at."""
    table: StreamTable[Request] = StreamTable(LimitLengths())
    for rid in rids:
        table.track(
            Request(rid), prompt=5, limit=9, rate=10.0, qos_class="reading", arrival=0.0, now=0.0
        )
    clock = SharedClock()
    clock.receive(ClockTick(now, 0, 1.0, 1.0))
    return SimpleNamespace(
        tf_table=table,
        tf_clock=clock,
        tf_pauser=SimpleNamespace(
            draining=other.get("draining", []), paused=other.get("paused", {})
        ),
        waiting_queue=other.get("waiting", []),
        tf_actuator=SimpleNamespace(free=free),
    )


def plan_of(*rids: str) -> Any:
    batch = SimpleNamespace(
        reqs=[Request(rid) for rid in rids], forward_mode=SimpleNamespace(name="DECODE")
    )
    return SimpleNamespace(batch_to_run=batch if rids else None, running_batch=batch)


def after(scheduler: Any, plan: Any, decision: Decision | None = None, rank: int = 0) -> Agreement:
    agreement = Agreement(rank)
    if decision is not None:
        agreement.decided(decision)
    agreement.passed(scheduler, plan)
    return agreement


def test_ranks_that_do_the_same_agree() -> None:
    leader, follower = (
        after(rank_with("a", "b"), plan_of("a", "b"), Decision(Mode.IDLE), rank) for rank in (0, 1)
    )
    for _ in range(3):
        follower.compare(leader.report())
        for each in (leader, follower):
            each.decided(Decision(Mode.WORKING_SET, run=(1, 0)))
            each.passed(rank_with("a"), plan_of("a"))


DIFFERENT: dict[str, tuple[Any, Any]] = {
    "clock": (rank_with("a", now=2.0), plan_of("a")),
    "streams": (rank_with("b", "a"), plan_of("a")),
    "batch": (rank_with("a"), plan_of()),
    "running": (rank_with("a"), plan_of("b")),
    "preempted": (rank_with("a", paused={Request("a"): None}), plan_of("a")),
    "waiting": (rank_with("a", waiting=[Request("a")]), plan_of("a")),
    "free memory": (rank_with("a", free=99), plan_of("a")),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_differs_is_named(what) -> None:
    leader = after(rank_with("a"), plan_of("a"))
    follower = after(*DIFFERENT[what], rank=1)
    with pytest.raises(RanksDisagreeError, match=f"pass 1: rank 1, in its pass 1.*{what}"):
        follower.compare(leader.report())


def test_another_order_of_victims_is_another_decision() -> None:
    victims = tuple(Preempt(slot, Cause.POLICY) for slot in (3, 4))
    leader, follower = (
        after(rank_with(), plan_of(), Decision(Mode.WORKING_SET, preempt=order), rank)
        for rank, order in enumerate((victims, victims[::-1]))
    )
    with pytest.raises(RanksDisagreeError, match="has another decision than rank 0"):
        follower.compare(leader.report())


def test_a_rank_that_is_a_pass_behind_is_named() -> None:
    leader, follower = (after(rank_with("a"), plan_of("a"), rank=rank) for rank in (0, 1))
    leader.passed(rank_with("a"), plan_of("a"))
    with pytest.raises(RanksDisagreeError, match="in pass 2: rank 1, in its pass 1"):
        follower.compare(leader.report())


def test_a_difference_of_long_ago_is_still_one() -> None:
    leader, follower = (after(rank_with("a"), plan_of("a"), rank=rank) for rank in (0, 1))
    leader.passed(rank_with("a", free=1), plan_of("a"))
    follower.passed(rank_with("a", free=2), plan_of("a"))
    for each in (leader, follower):
        each.passed(rank_with("a"), plan_of("a"))
    with pytest.raises(RanksDisagreeError, match="another free memory than"):
        follower.compare(leader.report())
