"""Ending a run whose outcome is certain: the search finds the same."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from made_runs.settings import here

from tokenflow_sgl.lab.report.goal import parse_goal
from tokenflow_sgl.lab.sim import simulate
from tokenflow_sgl.lab.sim.simulated_streams import SimulatedStreams
from tokenflow_sgl.lab.sim.study.capacity_search import CapacitySetup, SearchedRun, capacity, run_of
from tokenflow_sgl.lab.sim.study.early_end import EarlyEnd, TooManyMissedError, allowed_misses
from tokenflow_sgl.lab.traces import TraceRequest


@pytest.mark.parametrize("share", [0.5, 0.9, 0.95, 0.97, 0.99, 0.999, 1.0, 1 / 3, 1e-9])
def test_allowed_misses_are_those_that_the_search_lets_pass(share) -> None:
    for streams in itertools.chain(range(1, 300), (1000, 12345)):
        allowed = allowed_misses(share, streams)
        assert (streams - allowed) / streams >= share
        assert (streams - allowed - 1) / streams < share


def streams_of(*reasoning: int) -> SimulatedStreams:
    requests = [
        TraceRequest(0.0, 10, 20, 10.0, reasoning_tokens=tokens, limit_tokens=20)
        for tokens in reasoning
    ]
    return SimulatedStreams(requests)


def missed(goal: str, now: float, streams: SimulatedStreams) -> int:
    end = EarlyEnd(parse_goal(goal), -1)
    with pytest.raises(TooManyMissedError) as caught:
        end(now, streams)
    return caught.value.missed


def test_what_waits_longer_than_its_limit_has_missed_it() -> None:
    streams = streams_of(0, 0, 5)
    streams.sent[:] = [0.0, 1.5, np.nan]
    assert missed("ttft<=2", 2.0, streams) == 0, "a token may come right now"
    assert missed("ttft<=2", 2.1, streams) == 1
    assert missed("ttft<=2", 9.0, streams) == 2, "what was not sent waits for nothing"
    streams.generated[0] = 1
    assert missed("ttft<=2", 9.0, streams) == 1, "its first token may have been in time"
    streams.first_text[0] = 3.0
    assert missed("ttft<=2", 9.0, streams) == 2, "it was not"
    streams.first_text[0] = 2.0
    assert missed("ttft<=2", 9.0, streams) == 1


def test_thinking_is_no_visible_token() -> None:
    streams = streams_of(5, 5)
    streams.sent[:] = 0.0
    streams.generated[:] = [5, 6]
    assert missed("ttft<=2", 9.0, streams) == 0
    assert missed("ttfvt<=2", 9.0, streams) == 1
    streams.first_text[1] = 4.0
    assert missed("ttft<=2", 9.0, streams) == 0, "the first token is not the first visible one"
    assert missed("ttfvt<=2", 9.0, streams) == 2


@pytest.mark.parametrize("goal", ["stall<=0.5", "stalled<=0.5,ttft<=90", "stall<=9,stalled<=0.5"])
def test_a_reader_who_has_run_dry_has_missed_it(goal) -> None:
    streams = streams_of(0)
    streams.sent[:] = streams.first_text[:] = 0.0
    streams.generated[:] = streams.known[:] = 3
    streams.due[:] = 1.0
    assert missed(goal, 1.5, streams) == 0
    assert missed(goal, 1.6, streams) == 1
    streams.generated[:] = 4
    assert missed(goal, 1.6, streams) == 0, "when it runs dry is not known"
    streams.generated[:] = streams.known[:] = 20
    assert missed(goal, 9.0, streams) == 0, "it has read to the end"


def test_what_has_stalled_once_stays_missed() -> None:
    streams = streams_of(0, 0)
    streams.sent[:] = 0.0
    end = EarlyEnd(parse_goal("ttft<=2"), 1)
    streams.sent[1] = 4.0
    end(5.0, streams)
    assert end.missed.tolist() == [True, False]
    streams.generated[0] = 1
    with pytest.raises(TooManyMissedError, match="2 streams have missed"):
        end(9.0, streams)


GOALS = ["ttft<=2,stall<=0.5", "ttft<=0.2", "stall<=0.1", "stalled<=0.3", "ttfvt<=1,stalled<=2"]


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("policy", ["fcfs", "tokenflow"])
def test_what_counts_as_missed_is_missed_in_the_whole_run(
    trace, device, options, policy, goal
) -> None:
    rng = np.random.default_rng(3)
    rows = trace(
        *[
            (float(at), int(prompt), int(answer), float(rate))
            for at, prompt, answer, rate in zip(
                np.sort(rng.uniform(0, 10, 60)),
                rng.integers(20, 600, 60),
                rng.integers(2, 120, 60),
                rng.choice([10.0, 20.0, 40.0, 90.0], 60),
                strict=True,
            )
        ]
    )
    wanted = parse_goal(goal)
    end = EarlyEnd(wanted, len(rows.requests))
    done = simulate(rows, device, options(host_tokens=8000), policy=policy, watch=end)
    met = wanted.met(done.run)
    assert not (end.missed & met).any()
    plain = simulate(rows, device, options(host_tokens=8000), policy=policy)
    assert done.run.tokens.equals(plain.run.tokens), "looking changes nothing"
    if policy == "fcfs" and "ttft" in goal:
        assert end.missed.any(), "or this test shows nothing"


@pytest.fixture
def setup(trace, device, options):
    rows = trace(*[(float(second), 100, 50, 20.0) for second in range(30)])
    goal = parse_goal("ttft<=2,stall<=0.5")
    return CapacitySetup((rows,), device, options(host_tokens=8000), goal, 0.9)


def test_the_rate_found_is_that_of_whole_runs(setup) -> None:
    policies = ("fcfs", "tokenflow")
    whole = capacity(setup, policies, spread=here)
    early = capacity(dataclasses.replace(setup, whole=False), policies, spread=here)
    for one, two in zip(whole, early, strict=True):
        assert (one.policy, one.best, one.monotone) == (two.policy, two.best, two.monotone)
        assert [each.speed for each in one.tried] == [each.speed for each in two.tried]
        for long, short in zip(one.tried, two.tried, strict=True):
            assert (long.share >= setup.share) == (short.share >= setup.share)
            assert short.whole or long.share <= short.share, "at most that many could meet it"
            assert long == short or not short.whole
    assert any(not each.whole for each in early[0].tried)


def test_only_a_run_that_fails_is_ended(setup) -> None:
    early = dataclasses.replace(setup, whole=False)
    fast, slow = (run_of(early, ("fcfs", speed, 0)) for speed in (60.0, 0.5))
    assert slow == SearchedRun(30, 30)
    assert not fast.whole
    assert fast.met / fast.streams < setup.share
    assert run_of(setup, ("fcfs", 60.0, 0)).met <= fast.met


def test_streams_of_other_draws_may_make_up_for_it(setup, trace) -> None:
    easy = trace(*[(1000.0 * second, 100, 50, 20.0) for second in range(3000)])
    both = dataclasses.replace(setup, traces=(*setup.traces, easy), whole=False)
    assert run_of(both, ("fcfs", 1.0, 0)).whole
    few = dataclasses.replace(both, traces=(setup.traces[0], setup.traces[0]))
    assert not run_of(few, ("fcfs", 60.0, 0)).whole
