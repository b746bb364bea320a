"""How SGLang's priorities reach the policy."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tokenflow_sgl.engine.priority_scheduling import shown_priority, take_over_priorities


def scheduler(**given) -> SimpleNamespace:
    plain = {"enable_priority_scheduling": True, "schedule_low_priority_values_first": False}
    return SimpleNamespace(**{**plain, **given})


@pytest.mark.parametrize(
    ("priority", "shown"),
    [(0, 0), (3, 3), (-2, -2), (10**9, 10**9), (-sys.maxsize - 1, -sys.maxsize - 1)],
)
def test_larger_is_more_urgent(priority, shown) -> None:
    req = SimpleNamespace(priority=priority)
    assert shown_priority(scheduler(), req) == shown
    low_first = scheduler(schedule_low_priority_values_first=True)
    assert shown_priority(low_first, SimpleNamespace(priority=-priority)) == shown


@pytest.mark.parametrize("priority", [None, 7])
def test_without_priority_scheduling_none_counts(priority) -> None:
    off = scheduler(enable_priority_scheduling=False)
    assert shown_priority(off, SimpleNamespace(priority=priority)) == 0


def test_the_engine_preempts_nothing_by_itself() -> None:
    taken = scheduler(enable_priority_preemption=True)
    take_over_priorities(taken)
    assert not taken.enable_priority_preemption
