"""Headroom: the demand test read as an amount, with numbers worked by hand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.costs import StepCosts
from tokenflow_sgl.policy import WorkingSetConfig, admission
from tokenflow_sgl.policy.admission import admissible
from tokenflow_sgl.policy.headroom import REFERENCE_CONTEXT, WITHIN, headroom, promised

# As in test_admission: a full-memory step takes 0.1 s and the memory holds 1000 tokens, so a token
# takes 1e-4 s per token of its context, and 0.1024 s at a context of 1,024.
COSTS = StepCosts(decode=(0.1, 0.0, 0.0))
AS_MODELLED = 10_000.0
WHOLE = WITHIN / (1e-4 * REFERENCE_CONTEXT)
"""Tokens of newcomers' work that an engine with nothing to do can take."""

pytestmark = pytest.mark.usefixtures("one_margin")


@pytest.fixture
def room(make_state):
    def ask(rows, *, host=100_000, kv_rate=AS_MODELLED, costs=COSTS, **config):
        state = make_state(rows, total=1000, free=0, host=host, costs=costs)
        state = dataclasses.replace(state, kv_rate=kv_rate)
        return headroom(state, WorkingSetConfig(**{"hysteresis": 0.0, "eta": 1.0, **config}))

    return ask


# 200 tokens of context and 1000 to come at 10/s: 70 s of the engine within 110 s at the worst
# horizon, 0.63636 of its time (test_admission has the table).
def reader(make_stream, phase=Phase.RUNNING, **given):
    if phase is Phase.WAITING:
        return make_stream(phase, **{"prompt": 200, "expected": 1000.0, **given})
    return make_stream(phase, **{"slack": 0.0, "expected": 1100.0, **given})


def test_an_empty_engine_has_all_of_its_time(room) -> None:
    assert room([]) == pytest.approx(WHOLE)


def test_what_readers_ask_for_at_the_worst_horizon_is_taken_off(room, make_stream) -> None:
    assert room([reader(make_stream)]) == pytest.approx(WHOLE * (1 - 70 / 110))


def test_waiting_streams_count_as_those_that_were_admitted(room, make_stream) -> None:
    promised = [reader(make_stream, Phase.WAITING, admitted=True)]
    queued = [reader(make_stream, Phase.WAITING, admitted=False)]
    assert room(queued) == pytest.approx(room(promised)) == pytest.approx(WHOLE * (1 - 70 / 110))


def test_it_is_below_nought_where_too_much_is_promised(room, make_stream) -> None:
    both = [reader(make_stream), reader(make_stream, Phase.WAITING)]
    assert room(both) == pytest.approx(WHOLE * (1 - 140 / 110))


def test_a_full_buffer_leaves_more(room, make_stream) -> None:
    # With 80 s of slack: 10.5 s within 110, 38.5 within 150, 70 within 210 and 300.
    ahead = room([reader(make_stream, slack=80.0)])
    assert ahead == pytest.approx(WHOLE * (1 - 70 / 210))
    assert ahead > room([reader(make_stream)])


def test_due_prefills_are_taken_off_where_they_are_the_largest_share(room, make_stream) -> None:
    # 200 prompt tokens at 0.1 s, and at 30 s 300 tokens: 20 + 300 * 350e-4 of 30 s. At 110 s the
    # share is 90 of 110, less.
    costs = StepCosts(decode=(0.1, 0.0, 0.0), prefill=(0.0, 0.1, 0.0))
    queued = room([reader(make_stream, Phase.WAITING)], costs=costs)
    assert queued == pytest.approx(WHOLE * (1 - 30.5 / 30))


def test_what_has_to_be_done_within_seconds_leaves_time_later(room, make_stream) -> None:
    # A prefill of 4 s fits into no 2 s, and leaves most of 30 s.
    costs = StepCosts(decode=(0.1, 0.0, 0.0), prefill=(0.0, 0.02, 0.0))
    queued = room([reader(make_stream, Phase.WAITING, expected=1.0)], costs=costs)
    assert queued == pytest.approx(WHOLE * (1 - (4.0 + 200.5e-4) / 30))


@pytest.mark.parametrize("eta", [0.8, 1.0, 1.2])
def test_eta_is_admissions(room, make_stream, eta) -> None:
    assert room([reader(make_stream)], eta=eta) == pytest.approx(WHOLE * (eta - 70 / 110))


@pytest.mark.parametrize("kv_rate", [math.nan, 5_000.0, 20_000.0])
def test_what_was_measured_lately_does_not_move_it(room, make_stream, kv_rate) -> None:
    # Two servers with the same streams have the same headroom.
    assert room([reader(make_stream)], kv_rate=kv_rate) == room([reader(make_stream)])


def test_it_does_not_jump_where_streams_begin_to_share_memory(room, make_stream) -> None:
    # 200 tokens and 0.6 of those to come: 1000 tokens of memory are full with 1333 to come.
    given = {"hysteresis": 10.0}
    rooms = [
        room([reader(make_stream, expected=float(100 + left))], **given) for left in (1330, 1340)
    ]
    assert rooms[0] == pytest.approx(rooms[1], rel=0.05)


def test_memory_is_the_limit_where_it_is_less(room, make_stream) -> None:
    # 0.95 of 5/4 of the host, less the 1000 that a reader holds and 0.6 of its 10 to come.
    long = reader(make_stream, prompt=900, expected=110.0, slack=5.0)
    assert room([long], host=960) == pytest.approx(0.95 * 1200 - 1006)
    assert room([long, long], host=960) == pytest.approx(0.95 * 1200 - 2012)
    assert room([long], host=4000) == pytest.approx(WHOLE * (1 - 10 * 1005 * 1e-4 / 30))


def test_costs_that_nothing_is_known_of_leave_memory(room) -> None:
    assert room([], costs=StepCosts()) == pytest.approx(0.95 * 101_000)


# Memory for 100 streams of the reference context: a step of n takes 0.1 + 0.05 n seconds.
@pytest.mark.parametrize(("seen", "rows"), [(1.0, 2), (10.0, 20), (50.0, 100), (math.inf, 100)])
def test_a_server_that_has_served_little_is_not_called_slow(make_state, seen, rows) -> None:
    costs = StepCosts(decode=(0.1, 0.05, 0.0), seen_rows=seen)
    memory = 100 * int(REFERENCE_CONTEXT)
    state = make_state([], total=memory, free=memory, host=10 * memory, costs=costs)
    expected = WITHIN * 100 / (0.1 + 0.05 * rows)
    assert headroom(state, WorkingSetConfig(eta=1.0)) == pytest.approx(expected)


def test_a_stall_of_the_moment_does_not_move_it(room, make_stream) -> None:
    # The only reader stands still, and asks for as much as one that is about to.
    stalls = room([reader(make_stream, slack=-0.1, rate=5.0)])
    assert stalls == room([reader(make_stream, slack=0.0, rate=5.0)]) > 0.0


@pytest.mark.parametrize("seed", range(30))
def test_there_is_some_wherever_admission_takes_all_that_wait(
    make_state, make_stream, monkeypatch, seed
) -> None:
    drawn = np.random.default_rng(seed)
    rows = [
        make_stream(
            generated=int(drawn.integers(1, 300)),
            expected=float(drawn.integers(301, 2000)),
            slack=float(drawn.uniform(0.1, 60)),
            rate=float(drawn.uniform(1, 8)),
        )
        for _ in range(drawn.integers(1, 4))
    ]
    rows.append(
        make_stream(
            Phase.WAITING, arrival=99.9, expected=float(drawn.integers(1, 1500)), prompt=150
        )
    )
    state = make_state(rows, total=1000, free=0, host=10_000, costs=COSTS)
    state = dataclasses.replace(state, kv_rate=AS_MODELLED)
    config = WorkingSetConfig(hysteresis=0.0)  # no stock
    taken = len(admissible(state, config).join) == 1
    assert headroom(state, config) >= 0.0 or not taken
    # The converse where no shorter horizon is what decides: without them it is the same test.
    later = admission.OTHERS[admission.OTHERS >= WITHIN][:, None]
    monkeypatch.setattr("tokenflow_sgl.policy.admission.OTHERS", later)
    monkeypatch.setattr("tokenflow_sgl.policy.admission.DECISIVE", float(later[0, 0]))
    assert (headroom(state, config) >= 0.0) == (len(admissible(state, config).join) == 1)


@pytest.fixture
def share(make_state):
    def ask(rows, *, costs=COSTS, host=100_000, **config):
        state = make_state(rows, total=1000, free=0, host=host, costs=costs)
        state = dataclasses.replace(state, kv_rate=AS_MODELLED)
        return promised(state, WorkingSetConfig(**{"hysteresis": 0.0, "eta": 1.0, **config}))

    return ask


def test_nothing_is_promised_by_an_empty_engine(share) -> None:
    assert share([]) == 0.0
    assert share([], costs=StepCosts()) == 0.0, "of which nothing is known"


def test_what_is_promised_is_the_time_that_readers_ask_for(share, make_stream) -> None:
    assert share([reader(make_stream)]) == pytest.approx(70 / 110)
    both = [reader(make_stream), reader(make_stream, Phase.WAITING)]
    assert share(both) == 1.0, "and no more than all"


def test_memory_counts_where_more_of_it_is_promised(share, make_stream) -> None:
    fast = StepCosts(decode=(1e-6, 0.0, 0.0))
    little = share([reader(make_stream)], costs=fast, host=1500)
    assert little > share([reader(make_stream)], costs=fast) > 0.0


def test_streams_far_ahead_of_their_readers_promise_less(share, make_stream) -> None:
    """Their KV fills the memory as much, and a gateway that goes by that sends no newcomers."""
    assert share([reader(make_stream, slack=80.0)]) < share([reader(make_stream)])
