"""Goals: what is read, what is refused, and which streams meet them."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from tokenflow_sgl.lab.report.goal import parse_goal
from tokenflow_sgl.lab.report.judged import judge
from tokenflow_sgl.lab.report.report_options import Options, ReportError
from tokenflow_sgl.lab.runs.recording import record
from tokenflow_sgl.lab.sim import simulate


def test_limits_in_any_order() -> None:
    assert parse_goal("ttft<=2,stall<=0.5").limits == {"ttft": 2.0, "stall": 0.5}
    assert parse_goal(" stalled <= 1e0 ").limits == {"stalled": 1.0}
    assert str(parse_goal("stall<=0.50,ttft<=2")) == "stall<=0.5,ttft<=2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"goal has ''; allowed is METRIC<=SECONDS with a METRIC of ttft, ttfvt, stall, "),
        ("speed<=2", r"goal has 'speed<=2'; allowed is METRIC<=SECONDS"),
        ("ttft<2", r"goal has 'ttft<2'; allowed is METRIC<=SECONDS"),
        ("ttft", r"goal has 'ttft'; allowed is METRIC<=SECONDS"),
        ("ttft<=2,", r"goal has ''; allowed is METRIC<=SECONDS"),
        ("ttft<=", r"goal has ttft<=; allowed is a number of seconds from 0 to 1e\+06"),
        ("ttft<=2s", r"goal has ttft<=2s; allowed is a number"),
        ("ttft<=nan", r"goal has ttft<=nan; allowed is a number"),
        ("ttft<=inf", r"goal has ttft<=inf; allowed is a number"),
        ("stall<=-1", r"goal has stall<=-1; allowed is a number"),
        ("ttft<=1,ttft<=2", "goal has ttft twice"),
    ],
)
def test_what_is_no_goal_is_said(text, message) -> None:
    with pytest.raises(ReportError, match=message):
        parse_goal(text)


@pytest.fixture
def run(trace, device, options):
    """Two readers almost as fast as the device, and a prefill of 0.7 s that makes both stall."""
    rows = trace((0.0, 100, 40, 90.0), (0.0, 50, 40, 90.0), (0.3, 700, 5, 20.0))
    return simulate(rows, device, options(), policy="fcfs", known_lengths=True).run


def met(run, text: str) -> list[bool]:
    return parse_goal(text).met(run).tolist()


def test_each_limit_is_kept_or_not(run) -> None:
    assert met(run, "ttft<=10,stall<=10") == [True, True, True]
    # Prefills take 0.15 s together and 0.7 s for the third.
    assert met(run, "ttft<=0.5") == [True, True, False]
    assert met(run, "stall<=0.5") == [False, False, True]
    assert met(run, "stall<=0.8") == [True, True, True]
    assert met(run, "ttft<=0.5,stall<=0.5") == [False, False, False]
    assert met(run, "stalled<=0.001") == [False, False, True]


def test_limits_on_gaps_and_on_the_whole_answer(run) -> None:
    judged = judge(record(run), Options())
    for name, column in (("itl", judged.tpot), ("tbt", judged.tbt_p99), ("e2e", judged.e2e)):
        middle = sorted(column.tolist())[1]
        assert met(run, f"{name}<={middle!r}") == (column <= middle).tolist()
        assert met(run, f"{name}<=1000") == [True, True, True]
        assert met(run, f"{name}<=0") == [False, False, False]
    assert met(run, "ttft<=0.5,e2e<=1000") == [True, True, False]


def test_an_answer_of_one_token_has_no_gap_to_be_late(trace, device, options) -> None:
    rows = trace((0.0, 100, 1, 20.0))
    one = simulate(rows, device, options(), policy="fcfs", known_lengths=True).run
    assert met(one, "itl<=0,tbt<=0") == [True]


def test_a_longest_stall_is_not_all_stalls_together(trace, device, options) -> None:
    # Two prefills of 0.4 s, apart.
    rows = trace((0.0, 10, 60, 90.0), (0.1, 400, 1, 50.0), (0.9, 400, 1, 50.0))
    done = simulate(rows, device, options(), policy="fcfs", known_lengths=True).run
    assert met(done, "stall<=0.45")[0]
    assert not met(done, "stalled<=0.45")[0]


def test_a_stream_that_does_not_end_in_the_run_meets_nothing(run) -> None:
    reasons = run.requests["finish_reason"].to_pylist()
    place = run.requests.column_names.index("finish_reason")
    column = pa.array([None, *reasons[1:]], pa.string())
    ended = run.requests["ended_s"].to_pylist()
    where = run.requests.column_names.index("ended_s")
    cut = run.requests.set_column(place, "finish_reason", column)
    cut = cut.set_column(where, "ended_s", pa.array([None, *ended[1:]], pa.float64()))
    broken = dataclasses.replace(run, requests=cut)
    assert met(broken, "ttft<=10,stall<=10") == [False, True, True]
