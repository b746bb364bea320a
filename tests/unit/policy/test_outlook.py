"""How long newcomers would wait: against the demand test itself, and by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.costs import StepCosts
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.policy.admission import admissible
from tokenflow_sgl.policy.outlook import AHEAD, LONGEST, WaitOutlook, nothing_waits, outlook

# A full-memory step takes 0.1 s and the memory holds 1000 tokens: a token takes 1e-4 s per token
# of its context.
COSTS = StepCosts(decode=(0.1, 0.0, 0.0))
WITH_PREFILL = StepCosts(decode=(0.001, 0.0, 0.0), prefill=(0.0, 0.01, 0.0))
CONFIG = WorkingSetConfig(hysteresis=0.0, eta=1.0)

pytestmark = pytest.mark.usefixtures("one_margin")


@pytest.fixture
def seen(make_state):
    def look(rows, *, costs=COSTS, total=1000, host=100_000, before=None):
        state = make_state(rows, total=total, free=0, host=host, costs=costs)
        state = dataclasses.replace(state, kv_rate=10_000.0)
        return state, outlook(state, CONFIG, before)

    return look


def reading(make_stream, **given):
    return make_stream(Phase.RUNNING, **{"slack": 0.0, "expected": 1100.0, "arrival": 0.0, **given})


def newcomer(make_stream, **given):
    return make_stream(Phase.WAITING, **{"prompt": 100, "expected": 1000.0, **given})


def test_nothing_is_known_before_a_step_was_timed(seen, make_stream) -> None:
    _, found = seen([reading(make_stream)], costs=StepCosts())
    assert found.expected(found.at) == 0.0
    assert found.expected(found.at, ahead=1000) == 0.0


@pytest.mark.parametrize("members", range(8))
def test_it_says_at_once_where_the_demand_test_does(seen, make_stream, members) -> None:
    """A newcomer that would join now waits for no one; one that would not waits."""
    rows = [reading(make_stream) for _ in range(members)]
    state, _ = seen([*rows, newcomer(make_stream)])
    joins = bool(len(admissible(state, CONFIG).join))
    _, found = seen(rows, before=seen([newcomer(make_stream)])[1].usual)
    # With members, the usual request is like them.
    assert (found.expected(found.at) == 0.0) is joins


def test_memory_comes_free_as_answers_end(seen, make_stream) -> None:
    """Its only reader has 200 tokens to go at 10/s, and holds what the device and host have."""
    rows = [reading(make_stream, prompt=800, generated=100, expected=300.0)]
    _, full = seen(rows, host=0)
    # By itself it would need 2 s of the engine for each 10 s: it is at its end sooner.
    assert 0.0 < full.expected(full.at) <= 30.0
    _, empty = seen(rows, total=10_000, host=0)
    assert empty.expected(empty.at) == 0.0


def test_an_engine_ahead_of_its_readers_comes_to_ends_before_they_do(seen, make_stream) -> None:
    """Its reader has ten minutes unread, and a third of the time suffices for what is left."""
    ahead = reading(make_stream, prompt=800, generated=100, expected=300.0, slack=600.0)
    _, found = seen([ahead], host=0)
    assert 0.0 < found.expected(found.at) <= 60.0
    # Where it is in memory for a part of the time only, its end comes later.
    _, crowded = seen([ahead] * 3, host=1700)
    assert crowded.expected(crowded.at) > found.expected(found.at)


def test_prefills_before_it_and_its_own_are_waited_for(seen, make_stream) -> None:
    rows = [newcomer(make_stream, admitted=True) for _ in range(3)]
    _, found = seen(rows, costs=WITH_PREFILL, total=100_000)
    assert found.expected(found.at) == pytest.approx(4.0, abs=1.0)
    assert found.expected(found.at, prompt=50) == pytest.approx(
        4.0, abs=1.0
    )  # no shorter one was seen


def test_longer_prompts_wait_longer(seen, make_stream) -> None:
    rows = [newcomer(make_stream, prompt=100 * n) for n in range(1, 11)]
    _, found = seen(rows, costs=WITH_PREFILL, total=100_000)
    waits = [found.expected(found.at, prompt) for prompt in (100, 500, 1000)]
    assert waits == sorted(waits)
    assert waits[0] < waits[1] < waits[2]


def test_one_more_waits_for_one_and_not_for_what_many_would_make(seen, make_stream) -> None:
    """Room for two or three beside the reader, and none for more until one of them ends."""
    rows = [reading(make_stream, prompt=300, expected=100.0)]
    _, found = seen(rows, total=1600, host=0)
    waits = [found.expected(found.at, ahead=more) for more in (0, 1, 4)]
    assert waits[0] == waits[1] == 0.0
    assert waits[2] > 0.0


def test_the_more_are_ahead_the_longer_it_takes(seen, make_stream) -> None:
    rows = [reading(make_stream)] * 2
    _, found = seen(rows)
    waits = [found.expected(found.at, ahead=more) for more in range(0, 300, 5)]
    assert waits == sorted(waits)
    assert waits[0] < waits[-1]
    longer = [seen([*rows, *[newcomer(make_stream)] * n])[1] for n in (0, 1, 2, 3)]
    queued = [each.expected(each.at) for each in longer]
    assert queued == sorted(queued)
    assert queued[0] < queued[-1]


def test_time_that_has_passed_was_waited() -> None:
    found = WaitOutlook(
        10.0, np.array([100.0]), np.array([[8.0, 8.25, 8.5, 9.0, 12.0, 24.0, 72.0]])
    )
    assert found.expected(10.0) == 8.0
    assert found.expected(13.0) == 5.0
    assert found.expected(13.0, ahead=4) == 6.0
    assert found.expected(13.0, ahead=10_000) == 69.0
    assert found.expected(100.0) == 0.0


def test_an_engine_without_streams_is_asked_by_what_came_before(seen, make_stream) -> None:
    """The crowd that comes to an idle engine is no surprise to it."""
    _, crowded = seen([reading(make_stream)] * 4)
    _, empty = seen([], before=crowded.usual)
    assert empty.expected(empty.at) == 0.0
    assert empty.expected(empty.at, ahead=256) > 10.0
    _, unknown = seen([])
    assert unknown.expected(unknown.at, ahead=256) == 0.0
    assert nothing_waits(3.0).expected(3.0, ahead=256) == 0.0


@pytest.mark.parametrize("seed", range(20))
def test_it_is_a_number_of_seconds_whatever_is_there(seen, make_stream, seed) -> None:
    random = np.random.default_rng(seed)
    phases = (Phase.RUNNING, Phase.WAITING, Phase.PAUSED, Phase.DRAINING)
    rows = [
        make_stream(
            phases[int(random.integers(len(phases)))],
            prompt=int(random.integers(1, 50_000)),
            expected=float(random.integers(1, 5_000)),
            rate=float(random.uniform(0.1, 1e4)),
            generated=0,
            slack=float(random.uniform(-50, 100)),
        )
        for _ in range(int(random.integers(0, 60)))
    ]
    costs = WITH_PREFILL if seed % 2 else COSTS
    _, found = seen(rows, costs=costs, total=int(random.integers(100, 100_000)))
    assert found.wait.shape == (len(found.prompt), len(AHEAD))
    assert np.isfinite(found.wait).all()
    assert ((found.wait >= 0.0) & (found.wait <= LONGEST)).all()
