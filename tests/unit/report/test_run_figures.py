from __future__ import annotations

import math

import numpy as np
import pytest

from tokenflow_sgl.choices import TbtRule
from tokenflow_sgl.lab.report import Options, ReportError, compare, figures
from tokenflow_sgl.lab.report.page import page
from tokenflow_sgl.lab.report.reading import Reading, pick_streams
from tokenflow_sgl.lab.report.time_windows import population


@pytest.fixture
def run(synthetic):
    """Four requests of readers at 1 token/s, and a warm-up that must not count.

    0: due at 1, tokens at 2, 3, 3, 7: TTFT 1, gaps 1, 0, 4; the fourth is needed at 5, a stall of 2
    1: due at 2, sent at 2.5, one token at 6: TTFT 4
    2: due at 3, never a token, failed at 8: awaited to the end, 7 s
    3: due at 4, one of 3 tokens at 5, cut off; the recording ends at 10: needed at 6, a stall of 4
    """
    row = synthetic.request_row
    times = [[0.1, 0.2], [2, 3, 3, 7], [6], [], [5]]
    rows = [
        row(0, times[0], warm_up=True),
        row(1, times[1], scheduled_s=1.0, rate=1.0, prompt_tokens=10, ttft_slo_s=1.5, tbt_slo_s=3),
        row(2, times[2], scheduled_s=2.0, sent_s=2.5, rate=1.0, ttft_slo_s=3.5, tbt_slo_s=0.1),
        row(3, [], scheduled_s=3.0, rate=1.0, requested_tokens=5, ended_s=8.0, error="HTTP 500"),
        row(
            *(4, times[4]),
            **{"scheduled_s": 4.0, "rate": 1.0, "requested_tokens": 3, "ended_s": None},
            finish_reason=None,
        ),
    ]
    return synthetic.run_of(rows, times, duration_s=10.0)


def test_latency_by_hand(run):
    latency = figures(run).latency
    # The unserved request counts to the end of the recording, however soon it failed.
    assert (latency.ttft.count, latency.ttft.mean, latency.ttft.max) == (4, (1 + 4 + 7 + 1) / 4, 7)
    assert (latency.ttft_sent.count, latency.ttft_sent.max) == (3, 3.5)
    assert (latency.tbt.count, latency.tbt.mean, latency.tbt.max) == (3, 5 / 3, 4)
    assert (latency.tpot.count, latency.tpot.mean) == (1, pytest.approx(5 / 3))
    assert (latency.e2e.count, latency.e2e.mean) == (2, (6 + 4) / 2)
    # 6 s for four tokens and 4 s for one.
    assert (latency.e2e_per_token.count, latency.e2e_per_token.max) == (2, 4.0)
    assert latency.e2e_per_token.p90 == pytest.approx(1.5 + 0.9 * 2.5)


def test_throughput_by_hand(run):
    throughput = figures(run).throughput
    # From the first due (1 s, warm-up apart) to the end of the recording, where one was cut off.
    assert throughput.makespan == 9
    assert throughput.token == pytest.approx(6 / 9)
    assert throughput.request == pytest.approx(2 / 9)
    assert throughput.prompt == pytest.approx((10 + 100) / 9)
    # Request 1 has L = 4, tau 0.4 and 0.8 tokens: its third token meets a buffer of 1 and is worth
    # nothing, the others 1. The last stream's token is worth 1 as well.
    assert throughput.effective == pytest.approx((3 + 1 + 1) / 9)


def test_readers_by_hand(run):
    readers = figures(run).readers
    assert readers.stall_seconds == pytest.approx(2 + 4)
    assert readers.stall_count == 2
    assert readers.stalled_share == 0.5
    assert readers.stall_mean == pytest.approx(1.5)
    assert readers.rebuffer_share == pytest.approx(6 / (6 + 6))  # six tokens read for 1 s each
    assert readers.qos == pytest.approx(5 / 9)  # no penalties: the effective tokens


def test_eq2_charges_its_penalties(run):
    qos = figures(run, Options(ttft_penalty=0.1, stall_penalty=0.5)).readers.qos
    assert qos == pytest.approx((5 - 0.1 * 13 - 0.5 * 6) / 9)


def test_what_became_of_the_requests(run):
    requests = figures(run).requests
    assert (requests.counted, requests.completed, requests.unserved) == (4, 2, 1)
    assert requests.warm_up == 1
    assert requests.failed == {"HTTP 500": 1, "cut off by the end of the recording": 1}


def test_objectives_by_hand(run):
    # Request 1: TTFT 1 <= 1.5; P99 of 0, 1, 4 is 3.94 > 3. Request 2: TTFT 4 > 3.5; no gap.
    slo = figures(run).slo
    assert (slo.requests, slo.ttft_attainment, slo.tbt_attainment) == (2, 0.5, 0.5)
    assert slo.token_attainment == pytest.approx(2 / 3)
    assert (slo.attainment, slo.goodput) == (0, 0)


@pytest.mark.parametrize(
    ("rule", "attained"), [(TbtRule.mean, 1.0), (TbtRule.p99, 0.5), (TbtRule.every, 0.5)]
)
def test_rules_of_the_tbt_objective(run, rule, attained):
    # The mean gap is 5/3 <= 3, the longest is 4.
    slo = figures(run, Options(tbt_rule=rule)).slo
    assert slo.tbt_attainment == attained
    assert slo.goodput == pytest.approx((1 / 9) if attained == 1 else 0)


def test_objectives_by_option_for_those_that_carry_none(run):
    slo = figures(run, Options(ttft_slo_s=2.0)).slo
    # 1 within its own; 2 not; 3 never; 4 in time, but it broke off: within TTFT, not good.
    assert (slo.requests, slo.ttft_attainment) == (4, 0.5)
    assert slo.attainment == 0


def test_goodput_counts_requests_that_carry_nothing_if_others_do(synthetic):
    row, times = synthetic.request_row, [[1.0], [1.0]]
    rows = [row(0, times[0], ttft_slo_s=0.5), row(1, times[1])]
    slo = figures(synthetic.run_of(rows, times)).slo
    assert (slo.goodput, slo.attainment) == (1.0, 0.0)


def test_no_objectives_no_goodput(one_request):
    slo = figures(one_request([1.0, 2.0])).slo
    assert slo.requests == 0
    assert math.isnan(slo.goodput) and math.isnan(slo.attainment)


def test_andes_expects_by_option_or_by_the_objective(one_request):
    assert figures(one_request([2.0], rate=1.0)).readers.andes_qoe.mean == pytest.approx(0.5)
    patient = Options(expected_ttft_s=2.0)
    assert figures(one_request([2.0], rate=1.0), patient).readers.andes_qoe.mean == 1
    promised = one_request([2.0], rate=1.0, ttft_slo_s=2.0)
    assert figures(promised).readers.andes_qoe.mean == 1


def test_an_empty_run_has_no_figures(synthetic):
    found = figures(synthetic.run_of([], []))
    assert found.requests.counted == 0
    assert math.isnan(found.throughput.token) and math.isnan(found.latency.ttft.mean)
    assert found.bench.completed == 0


def test_one_token_is_a_run(one_request):
    found = figures(one_request([2.0], scheduled_s=1.5))
    assert (found.latency.ttft.mean, found.latency.e2e.mean) == (0.5, 0.5)
    assert found.latency.tbt.count == 0
    assert found.throughput.token == 2.0


def test_requests_after_the_end_are_left_out(synthetic):
    row = synthetic.request_row
    rows = [
        row(0, [1.0]),
        row(1, [], scheduled_s=9.0, sent_s=None, requested_tokens=3),
        row(2, [], scheduled_s=1.5, sent_s=None, requested_tokens=3),
    ]
    run = synthetic.run_of(rows, [[1.0], [], []], duration_s=4.0, interrupted=True)
    requests = figures(run).requests
    assert (requests.counted, requests.not_reached) == (2, 1)
    assert requests.failed == {"never sent": 1}


def test_turns_that_were_never_due_have_no_ttft(synthetic):
    row = synthetic.request_row
    never = {"session": "a", "scheduled_s": None, "sent_s": None, "requested_tokens": 3}
    rows = [
        row(0, [], session="a", requested_tokens=3, ended_s=0.03, error="HTTP 503"),
        row(1, [], turn=1, error="not sent: turn 0 of session a failed", ttft_slo_s=1.0, **never),
        row(2, [1.5], scheduled_s=1.0),
        row(3, [], turn=1, **{**never, "session": "b"}),  # the end came before it was due
    ]
    run = synthetic.run_of(rows, [[], [], [1.5], []], duration_s=4.0)
    found = figures(run)
    # The first one was refused at once, and its reader has no token when the recording ends.
    assert (found.latency.ttft.count, found.latency.ttft.mean) == (2, (4 + 0.5) / 2)
    requests = found.requests
    assert (requests.counted, requests.unserved, requests.not_reached) == (3, 2, 1)
    assert len(requests.failed) == 2
    assert found.slo.ttft_attainment == 0
    # A plot shows the refused one as waiting until it was refused, and the other not at all.
    waiting, _ = population(found.judged, np.array([0.0, 0.02, 0.04, 1.2, 3.0]))
    np.testing.assert_allclose(waiting, [1, 1, 0, 1, 0])
    assert Reading(found.judged).stall_map(columns=4).waiting[1].max() == 0
    assert pick_streams([found.judged]) == [("longest TTFT", 0, 0), ("median TTFT", 0, 2)]
    same = compare(found, [found]).others[0].changes
    assert {change.ratio for change in same if change.figure.key.startswith("ttft")} == {1.0}
    assert "not sent: turn 0" in page(found)


@pytest.mark.parametrize(
    ("info", "label", "warnings"),
    [
        ({}, "a", 0),
        ({"interrupted": True}, "a [INTERRUPTED]", 1),
        ({"invalid": ("Late.",), "interrupted": True}, "a [INVALID]", 2),
    ],
)
def test_state_is_in_the_label(one_request, info, label, warnings):
    found = figures(one_request([1.0], info={"name": "a", **info}))
    assert found.label == label
    assert len(found.warnings) == warnings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tau1": 0.3}, "tau1 and tau2 must be 0 <= tau1 < tau2, got 0.3 and 0.2"),
        ({"ttft_penalty": -1}, "ttft_penalty must be a finite number >= 0, got -1"),
        ({"stall_penalty": math.nan}, "stall_penalty must be a finite number >= 0, got nan"),
        ({"tbt_slo_s": 0.0}, "tbt_slo_s must be a finite number > 0, got 0.0"),
        ({"confidence": 1.0}, "confidence must be a finite number > 0 and < 1, got 1.0"),
        ({"resamples": 3}, "resamples must be >= 100, got 3"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
    ],
)
def test_options_are_checked(changes, message):
    with pytest.raises(ReportError, match=message):
        Options(**changes)


def test_toy_runs_are_what_they_are_made_for(pair):
    stock, ours = (figures(run) for run in pair)
    assert ours.latency.ttft.p99 < stock.latency.ttft.p99
    assert ours.throughput.effective > stock.throughput.effective
    assert np.isclose(stock.throughput.token, ours.throughput.token, rtol=0.1)
