from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.lab.traces import Accounting, PriorityUpdate, Trace, TraceError, TraceRequest
from tokenflow_sgl.lab.traces.generators.priority_changes import RandomPriorities
from tokenflow_sgl.lab.traces.generators.reading_rates import RateMix
from tokenflow_sgl.lab.traces.transform import (
    fit_context,
    limit,
    poisson_arrivals,
    sample,
    speed_up,
    window,
    with_classes,
    with_priorities,
    with_rates,
    with_slos,
)
from tokenflow_sgl.qos.classes import SHIPPED_CLASSES


def request(arrival_s, prompt=10, output=5, session=None, turn=0, **rest):
    return TraceRequest(arrival_s, prompt, output, session=session, turn=turn, **rest)


def trace(*requests, updates=()):
    rows = len(requests) + 2
    return Trace(
        "t", requests, Accounting(rows, len(requests), {"before": 2}), ("Old.",), tuple(updates)
    )


CHAT = trace(
    request(0, session="a"),
    request(1),
    request(2, session="b"),
    request(3, session="a", turn=1, think_s=4.0),
    request(4),
    request(5, session="a", turn=2),
    updates=(PriorityUpdate(1.5, 1, 7), PriorityUpdate(2.5, 2, 8), PriorityUpdate(6, 4, 9)),
)


def names(result):
    return [r.session or f"#{CHAT.requests.index(replace(r, rate=None))}" for r in result.requests]


def test_window_keeps_sessions_whole_and_moves_zero():
    result = window(CHAT, 0, 1)
    assert names(result) == ["a", "a", "a"]  # its later turns lie outside, but it began inside
    result = window(CHAT, 1, 3)
    assert [(r.session, r.arrival_s) for r in result.requests] == [(None, 0.0), ("b", 1.0)]
    assert result.accounting.dropped == {"before": 2, "arrival outside 1 to 4 s": 4}
    assert result.notes == ("Old.", "Window of 3 s from 1 s on.")
    assert result.priority_updates == (PriorityUpdate(0.5, 0, 7), PriorityUpdate(1.5, 1, 8))


def test_window_moves_early_changes_of_priority_to_its_start():
    early = trace(request(5), updates=(PriorityUpdate(1, 0, 3),))
    assert window(early, 4, 2).priority_updates == (PriorityUpdate(0.0, 0, 3),)


def test_speed_up():
    result = speed_up(CHAT, 2)
    assert [r.arrival_s for r in result.requests] == [0, 0.5, 1, 1.5, 2, 2.5]
    assert result.requests[3].think_s == 4.0
    assert [u.time_s for u in result.priority_updates] == [0.75, 1.25, 3.0]
    assert result.accounting == CHAT.accounting


def test_limit_keeps_sessions_whole():
    assert names(limit(CHAT, 4)) == ["a", "#1", "a", "a"]
    assert names(limit(CHAT, 5)) == ["a", "#1", "b", "a", "a"]
    assert limit(CHAT, 4).accounting.dropped == {"before": 2, "after the first 4 requests": 2}
    assert limit(CHAT, 99).requests == CHAT.requests
    with pytest.raises(TraceError, match="no request of t is left: all have after the first 2"):
        limit(CHAT, 2)


def test_limit_stops_at_what_does_not_fit():
    mixed = trace(request(0), request(1, session="a"), request(2, session="a", turn=1), request(3))
    assert [r.arrival_s for r in limit(mixed, 2).requests] == [0]  # not the request at 3


def test_fit_context_cuts_a_session_from_the_first_turn_that_does_not_fit():
    chat = trace(
        request(0, 10, session="a"),
        request(1, 90, session="a", turn=1),
        request(2, 10, session="a", turn=2),
        request(3, 95),
        request(4, 96),
    )
    result = fit_context(chat, 100)
    assert [(r.session, r.turn, r.prompt_tokens) for r in result.requests] == [
        ("a", 0, 10),
        ("a", 1, 90),
        ("a", 2, 10),
        (None, 0, 95),
    ]
    result = fit_context(chat, 50)
    assert [r.prompt_tokens for r in result.requests] == [10]
    assert result.accounting.dropped == {
        "before": 2,
        "over 50 tokens of context": 3,
        "after a turn over 50 tokens of context": 1,
    }


def test_sample_is_by_session_and_has_the_share():
    many = trace(*(request(n // 3, session=f"s{n // 3}", turn=n % 3) for n in range(6000)))
    result = sample(many, 0.3, seed=1)
    assert len(result.requests) == pytest.approx(1800, rel=0.1)
    turns = {}
    for r in result.requests:
        turns.setdefault(r.session, []).append(r.turn)
    assert all(value == [0, 1, 2] for value in turns.values())
    assert sample(many, 0.3, seed=1) == result
    assert sample(many, 0.3, seed=2) != result
    assert sample(many, 1.0, seed=1).requests == many.requests


def test_rates_are_one_per_reader():
    many = trace(*(request(n // 3, session=f"s{n // 3}", turn=n % 3) for n in range(3000)))
    result = with_rates(many, RateMix((15, 20, 25, 30)), seed=1)
    rates = {}
    for r in result.requests:
        rates.setdefault(r.session, set()).add(r.rate)
    assert all(len(value) == 1 for value in rates.values())
    counts = [sum(value == {rate} for value in rates.values()) for rate in (15, 20, 25, 30)]
    assert counts == pytest.approx([250] * 4, rel=0.2)
    assert result.notes[-1] == "Readers of 15/20/25/30 tokens/s, seed 1."
    assert with_rates(many, RateMix((20,)), seed=1).notes[-1] == "Readers of 20 tokens/s."


def test_a_class_gives_its_rate_and_a_rate_takes_the_class():
    mixed = trace(request(0), replace(request(1), rate=None, qos_class="listening"))
    resolved = with_classes(mixed, SHIPPED_CLASSES.rates)
    assert [r.rate for r in resolved.requests] == [mixed.requests[0].rate, 5.0]
    assert resolved.requests[1].qos_class == "listening"
    read = with_rates(resolved, RateMix((20,)), seed=1)
    assert {(r.rate, r.qos_class) for r in read.requests} == {(20, None)}
    other = trace(replace(request(0), qos_class="voice"))
    with pytest.raises(TraceError) as caught:
        with_classes(other, SHIPPED_CLASSES.rates)
    assert str(caught.value) == (
        f"request 0 of {other.name} is of the class 'voice'; known classes are agent, listening, "
        "reading"
    )


def test_objectives():
    result = with_slos(CHAT, 1.5, None)
    assert {(r.ttft_slo_s, r.tbt_slo_s) for r in result.requests} == {(1.5, None)}
    result = with_slos(result, None, 0.1)
    assert {(r.ttft_slo_s, r.tbt_slo_s) for r in result.requests} == {(1.5, 0.1)}
    assert result.notes[1:] == ("TTFT objective 1.5 s.", "TBT objective 0.1 s.")


def test_priorities():
    result = with_priorities(CHAT, RandomPriorities(1, levels=3, active_s=5), seed=1)
    assert all(r.priority in (0, 1, 2) for r in result.requests)
    assert result.priority_updates
    assert result.notes[-1] == "Priorities by random:frequency=1,levels=3,active_s=5, seed 1."


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: window(CHAT, -1, 5), "start is -1"),
        (lambda: window(CHAT, 0, 0), "duration is 0"),
        (lambda: window(CHAT, 50, 5), "no request of t is left: all have arrival outside 50 to 55"),
        (lambda: speed_up(CHAT, 0), "speed is 0"),
        (lambda: speed_up(CHAT, float("nan")), "speed is nan"),
        (lambda: sample(CHAT, 0, 1), "share is 0"),
        (lambda: sample(CHAT, 1.1, 1), "share is 1.1"),
        (lambda: limit(CHAT, 0), "limit is 0"),
        (lambda: fit_context(CHAT, 1), "max_context is 1"),
        (lambda: fit_context(CHAT, 14), "no request of t is left: all have over 14 tokens"),
        (lambda: with_slos(CHAT, -1, None), "TTFT SLO is -1"),
        (lambda: with_slos(CHAT, None, float("inf")), "TBT SLO is inf"),
    ],
)
def test_bad_arguments(call, problem):
    with pytest.raises(TraceError, match=problem):
        call()


TRANSFORMS = [
    lambda t: window(t, 0.0, 5e5),
    lambda t: window(t, 1e5, 4e5),
    lambda t: speed_up(t, 3.0),
    lambda t: sample(t, 0.5, 0),
    lambda t: limit(t, 4),
    lambda t: fit_context(t, 4000),
    lambda t: with_rates(t, RateMix((15, 20)), 0),
    lambda t: with_slos(t, 1.0, 0.1),
    lambda t: with_priorities(t, RandomPriorities(1e-5, levels=3, active_s=1e5), 0),
]


@given(data=st.data(), chosen=st.lists(st.sampled_from(TRANSFORMS), min_size=1, max_size=3))
def test_any_transforms_of_any_trace_balance(data, chosen, traces, is_balanced):
    before = data.draw(traces)
    result = before
    for transform in chosen:
        try:
            result = transform(result)
        except TraceError as error:
            assert "is left" in str(error)  # the only allowed failure here
            return
    assert is_balanced(result)
    assert result.accounting.rows == before.accounting.rows
    assert len(result.notes) > len(before.notes)
    turns = {}
    for r in result.requests:
        if r.session is not None:
            assert r.turn == turns.get(r.session, 0)
            turns[r.session] = r.turn + 1
    times = [u.time_s for u in result.priority_updates]
    assert times == sorted(times)


def test_poisson_arrivals_move_sessions_as_one():
    result = poisson_arrivals(CHAT, 0.1, 7)
    assert result.notes[-1] == "Poisson arrivals at 0.1 requests/s, seed 7."
    arrivals = [r.arrival_s for r in result.requests]
    assert arrivals == sorted(arrivals)
    turns = [r.arrival_s for r in result.requests if r.session == "a"]
    assert [each - turns[0] for each in turns] == pytest.approx([0.0, 3.0, 5.0])
    moved = {r.arrival_s for r in result.requests if not r.turn}
    faster = {r.arrival_s for r in poisson_arrivals(CHAT, 0.2, 7).requests if not r.turn}
    assert sorted(each / 2 for each in moved) == pytest.approx(sorted(faster))
    assert moved != {r.arrival_s for r in poisson_arrivals(CHAT, 0.1, 8).requests}
    shift = [u.time_s - result.requests[u.index].arrival_s for u in result.priority_updates]
    assert sorted(shift) == pytest.approx([0.5, 0.5, 2.0]), "as long after their requests"


def test_poisson_arrivals_have_the_rate_and_exponential_gaps():
    many = trace(*(request(0.0) for _ in range(4000)))
    arrivals = [r.arrival_s for r in poisson_arrivals(many, 5.0, 0).requests]
    gaps = [b - a for a, b in zip([0.0, *arrivals], arrivals, strict=False)]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.2, rel=0.05)
    assert spread / mean == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_poisson_arrivals_need_a_rate(rate):
    with pytest.raises(TraceError, match="rate is"):
        poisson_arrivals(CHAT, rate, 0)
