"""Timelines worked out by hand, and what must hold on every trace."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.choices import Sessions
from tokenflow_sgl.lab.sim import SimulationError, engine, simulate
from tokenflow_sgl.lab.sim.schedulers.by_name import POLICIES
from tokenflow_sgl.lab.sim.step import NO_STREAM, Chunk, SimulatedDevice, Step
from tokenflow_sgl.lab.traces import Accounting, Trace, TraceRequest


def test_one_request(times_of, trace, device, options) -> None:
    # 100 prompt tokens at a millisecond, then four decode steps.
    done = simulate(trace((0.5, 100, 5)), device, options(), policy="fcfs")
    assert times_of(done)[0] == pytest.approx([0.6, 0.61, 0.62, 0.63, 0.64])
    # And one more: while it runs, SGLang learns that the answer has ended.
    assert done.steps == 6
    assert done.run.info.duration_s == pytest.approx(0.64)


def test_an_arrival_is_seen_when_the_next_step_starts_and_served_after_it(
    times_of, trace, device, options
) -> None:
    both = trace((0.0, 100, 30), (0.105, 100, 1))
    # It comes in the decode step from 0.10 to 0.11; the next one is planned already.
    late = simulate(both, device, options(), policy="fcfs", known_lengths=True)
    assert times_of(late)[1] == pytest.approx([0.22])
    at_once = simulate(both, device, options(overlap=False), policy="fcfs", known_lengths=True)
    assert times_of(at_once)[1] == pytest.approx([0.21])


def test_prefill_comes_before_decode(times_of, trace, device, options) -> None:
    done = simulate(
        trace((0.0, 100, 3), (0.0, 200, 2)), device, options(), policy="fcfs", known_lengths=True
    )
    # One step for both prompts: 0.3 s.
    assert times_of(done) == {
        0: pytest.approx([0.3, 0.31, 0.32]),
        1: pytest.approx([0.3, 0.31]),
    }


def test_long_prompts_are_cut_into_chunks(times_of, trace, device, options) -> None:
    settings = options(chunked_prefill_size=100)
    done = simulate(
        trace((0.0, 250, 2), (0.0, 30, 2)), device, settings, policy="fcfs", known_lengths=True
    )
    # 100, 100, then the last 50 with the 30 of the second.
    assert times_of(done)[0] == pytest.approx([0.28, 0.29])
    assert times_of(done)[1] == pytest.approx([0.28, 0.29])
    assert done.steps == 4


def test_mixed_chunks_let_running_streams_decode(times_of, trace, device, options) -> None:
    rows = trace((0.0, 10, 100), (0.1, 300, 2))
    plain = simulate(rows, device, options(), policy="fcfs", known_lengths=True)
    mixed = simulate(
        rows, device, options(enable_mixed_chunk=True), policy="fcfs", known_lengths=True
    )

    def inside(done) -> int:
        first = times_of(done)[1][0]
        return sum(first - 0.3 < time <= first + 1e-9 for time in times_of(done)[0])

    assert inside(plain) <= 1
    assert inside(mixed) == 1
    gaps = [b - a for a, b in zip(times_of(plain)[0], times_of(plain)[0][1:], strict=False)]
    assert max(gaps) == pytest.approx(0.31)


def test_a_host_load_hides_behind_what_is_computed(device) -> None:
    device = SimulatedDevice(device)
    # 500 tokens load in 0.05 s; 1000 new ones compute in 1 s, 0.1 s a layer.
    long = Step(NO_STREAM, (Chunk(0, 500, 1000, loaded=500),))
    assert device.prefill_end(long, 0.0, 0) == pytest.approx(1.0)
    short = Step(NO_STREAM, (Chunk(0, 500, 20, loaded=500),))
    # The last layer's KV is there after 0.05 s; it computes 0.002 s.
    assert device.prefill_end(short, 2.0, 0) == pytest.approx(2.052)
    # A load starts with its step, behind the one before it.
    assert device.prefill_end(short, 2.04, 0) == pytest.approx(2.102)


def test_closed_sessions_wait_for_answers(times_of, device, options) -> None:
    turns = [
        TraceRequest(0.0, 100, 3, rate=10.0, session="a", turn=0),
        TraceRequest(0.01, 100, 2, rate=10.0, session="a", turn=1, think_s=1.0),
    ]
    both = Trace("turns", tuple(turns), Accounting(2, 2))
    closed = simulate(both, device, options(), policy="fcfs")
    assert times_of(closed)[1] == pytest.approx([1.22, 1.23])
    opened = simulate(both, device, options(), policy="fcfs", sessions=Sessions.open)
    assert times_of(opened)[1][0] < 0.5


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.floats(0.0, 3.0), st.integers(1, 300), st.integers(1, 200), st.floats(2.0, 80.0)
        ),
        min_size=1,
        max_size=12,
    ),
    policy=st.sampled_from(POLICIES),
    host=st.sampled_from([0, 500, 5000]),
    overlap=st.booleans(),
)
def test_each_stream_gets_every_token(
    times_of, trace, device, options, rows, policy, host, overlap
) -> None:
    requests = trace(*sorted(rows))
    settings = options(host_tokens=host, overlap=overlap, chunked_prefill_size=128)
    done = simulate(requests, device, settings, policy=policy)
    times = times_of(done)
    for index, request in enumerate(requests.requests):
        assert len(times[index]) == request.output_tokens
        assert times[index] == sorted(times[index])
        earliest = request.arrival_s + 0.001 * request.prompt_tokens
        assert times[index][0] >= earliest - 1e-9
    again = simulate(requests, device, settings, policy=policy)
    assert again.run.tokens.equals(done.run.tokens)
    assert done.recomputed >= done.resumed


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.floats(0.0, 3.0), st.integers(1, 200), st.integers(1, 200)),
        min_size=1,
        max_size=12,
    )
)
def test_steps_taken_together_are_the_same_steps(times_of, trace, device, options, rows) -> None:
    requests = trace(*sorted(rows))
    together = simulate(requests, device, options(), policy="fcfs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "MOST_AT_ONCE", 1)
        single = simulate(requests, device, options(), policy="fcfs")
    assert single.steps == together.steps
    assert single.retracted == together.retracted
    one, other = times_of(single), times_of(together)
    for index in one:
        assert one[index] == pytest.approx(other[index], abs=1e-9)


def test_a_request_that_never_fits_is_refused(trace, device, options) -> None:
    with pytest.raises(SimulationError, match=r"request 1 of toy has 999 tokens.*at most 998"):
        simulate(trace((0.0, 10, 10), (0.0, 900, 99)), device, options())
    simulate(trace((0.0, 899, 99)), device, options())


def test_an_unknown_policy_is_refused(trace, device, options) -> None:
    with pytest.raises(SimulationError, match="policy is 'fifo'; allowed is fcfs, fcfs-hicache"):
        simulate(trace((0.0, 1, 1)), device, options(), policy="fifo")


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_total_tokens", 0), ("host_tokens", -1), ("schedule_conservativeness", 0.0)],
)
def test_settings_out_of_range_are_refused(options, field, value) -> None:
    with pytest.raises(SimulationError, match=f"{field} is {value!r}; allowed is"):
        options(**{field: value})


@pytest.mark.parametrize("policy", ["fcfs", "fcfs-hicache", "vtc"])
def test_a_server_that_was_idle_serves_a_burst_as_a_new_one(
    times_of, trace, device, options, policy
) -> None:
    rows = [
        (start + 0.1 * index, 20, 60 + index * 37 % 300)
        for start in (0.0, 900.0)
        for index in range(12)
    ]
    done = simulate(trace(*rows), device, options(), policy=policy, known_lengths=True)
    times = times_of(done)
    for first, second in zip(range(12), range(12, 24), strict=True):
        assert [time - 900.0 for time in times[second]] == pytest.approx(times[first])
