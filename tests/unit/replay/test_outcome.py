import math

import pytest

from tokenflow_sgl.lab.replay import MAX_LAG_S, ReplayOptions, Target
from tokenflow_sgl.lab.replay.outcome import ReplayOutcome, make_run
from tokenflow_sgl.lab.replay.pace import Pace
from tokenflow_sgl.lab.replay.preparation import make_records
from tokenflow_sgl.lab.replay.records import TraceClock


@pytest.fixture
def judged(ask, trace_of):
    """A run in which nothing was sent, with these lags."""

    def judge(send_lag_s, loop_lag_s, invalid=(), server_lag_s=(), pace=None):
        trace = trace_of(ask())
        return make_run(
            trace,
            Target("http://x"),
            ReplayOptions(),
            make_records(trace),
            ReplayOutcome(
                clock=TraceClock(100.0, 2.0),
                started_at="2026-01-01T00:00:00+00:00",
                ended=110.0,
                interrupted=False,
                send_lag_s=send_lag_s,
                loop_lag_s=loop_lag_s,
                server_lag_s=server_lag_s,
                notes=["a note"],
                invalid=invalid,
                pace=pace or Pace(),
            ),
        ).info

    return judge


def test_lags_up_to_the_bound_are_fine(judged):
    info = judged([MAX_LAG_S] * 10, [0.0, MAX_LAG_S])
    assert info.invalid == ()
    assert info.send_lag_p99_s == pytest.approx(MAX_LAG_S)
    assert info.duration_s == 5.0
    assert info.target["notes"] == ["a note"]


def test_lags_beyond_the_bound_are_not(judged):
    slow = [MAX_LAG_S * 1.2] * 10
    sent, ran = judged(slow, slow).invalid
    assert sent.startswith("At the 99th percentile requests were sent 60 ms late (allowed: 50 ms)")
    assert ran.startswith("At the 99th percentile the client's event loop ran 60 ms late")


def test_one_pause_in_a_long_run_is_fine(judged):
    """The bound is on the 99th percentile, not on the worst moment."""
    assert judged([0.0] * 199 + [1.0], [0.0] * 199 + [1.0]).invalid == ()


def test_nothing_sent_is_no_lag_and_other_reasons_stay(judged):
    info = judged([], [], invalid=["The server was gone."])
    assert info.send_lag_p99_s is None
    assert info.invalid == ("The server was gone.",)


def test_an_emulated_servers_lag_counts_by_the_devices_clock(judged):
    """The clock of this fixture runs at half speed, so 100 ms are allowed."""
    assert judged([], [], server_lag_s=[0.099] * 5).invalid == ()
    (reason,) = judged([], [], server_lag_s=[0.12] * 5).invalid
    assert "HTTP process took 60 ms of the device's time" in reason
    assert reason.endswith("Next: retry with a server that has --time-dilation 2.5.")


@pytest.mark.parametrize(
    ("needed", "lag_s", "step"),
    [
        (3.0, 0.0, "--time-dilation 3."),
        (3.01, 0.0, "--time-dilation 3.25."),
        (0.375, 0.0, "--time-dilation 0.4."),
        (3.0, 0.22, "--time-dilation 4.5."),
        (math.inf, 0.0, "a much larger --time-dilation than 2, or on a faster machine."),
    ],
)
def test_what_was_too_fast_says_how_fast_it_may_be(judged, needed, lag_s, step):
    """The fixture's clock has a dilation of 2. One step, for all that was lost."""
    lost = Pace(("The device starved.", "The device was late."), needed)
    reasons = judged([], [], server_lag_s=[lag_s], pace=lost).invalid
    assert len(reasons) == 2 + (lag_s > 0)
    for reason in reasons:
        assert reason.endswith(f"Next: retry with a server that has {step}")


def test_every_reason_names_a_next_step(judged):
    slow = [MAX_LAG_S * 1.2] * 10
    for reason in judged(slow, slow, server_lag_s=[1.0], pace=Pace(("Late.",), 3.0)).invalid:
        assert " Next: " in reason
