from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from tokenflow_sgl.lab.report import Options, ReportError, Verdict, compare, figures


def changes(one, two, **how):
    against = compare(one, [two], **how).others[0]
    return {change.figure.key: change for change in against.changes}


@pytest.fixture(scope="module")
def judged(pair):
    return figures(pair[0]), figures(pair[1])


def test_equal_runs_do_not_differ(judged):
    for key, change in changes(judged[0], judged[0]).items():
        assert change.verdict in (Verdict.unclear, Verdict.unknown), key
        if math.isfinite(change.ratio_low):
            assert change.ratio_low <= 1 <= change.ratio_high, key


def test_the_same_server_with_other_luck_does_not_differ_clearly(synthetic):
    # Other tokens of the same kind: a negative control for the intervals.
    rows, one, two = [], [], []
    rng = np.random.default_rng(3)
    for index in range(150):
        one.append((index * 0.1 + 1 + rng.exponential(0.5, 30).cumsum()).tolist())
        two.append((index * 0.1 + 1 + rng.exponential(0.5, 30).cumsum()).tolist())
        rows.append({"scheduled_s": index * 0.1, "rate": 4.0})
    runs = [
        figures(
            synthetic.run_of(
                [synthetic.request_row(n, part[n], **row) for n, row in enumerate(rows)],
                part,
                duration_s=100.0,
            )
        )
        for part in (one, two)
    ]
    found = changes(*runs)
    for key in ("ttft_mean", "ttft_p50", "tbt_mean", "tbt_p99", "stall_seconds", "andes_qoe_mean"):
        assert found[key].verdict is Verdict.unclear, key
        assert found[key].ratio_low < 1 < found[key].ratio_high


def test_different_servers_differ(judged):
    found = changes(*judged)
    ttft = found["ttft_mean"]
    assert ttft.verdict is Verdict.better
    assert ttft.ratio == pytest.approx(ttft.value / ttft.baseline)
    assert ttft.ratio_low < ttft.ratio < ttft.ratio_high < 1
    assert found["effective_throughput"].verdict is Verdict.better
    assert found["effective_throughput"].ratio_low > 1
    assert found["tbt_p99"].verdict is Verdict.worse
    # The other way round, the other way round.
    back = changes(judged[1], judged[0])
    assert back["ttft_mean"].verdict is Verdict.worse
    assert back["ttft_mean"].ratio == pytest.approx(1 / ttft.ratio)


def test_the_makespan_is_not_judged_by_a_hair(judged):
    found = changes(*judged)["makespan"]
    assert abs(found.ratio - 1) < 0.01
    assert found.verdict is Verdict.unclear


def test_bootstrap_is_reproducible(judged):
    assert compare(judged[0], [judged[1]]).others == compare(judged[0], [judged[1]]).others


def test_another_seed_draws_others(pair, judged):
    other = [figures(run, Options(seed=1)) for run in pair]
    one, two = changes(*judged)["ttft_mean"], changes(*other)["ttft_mean"]
    assert one.ratio == two.ratio
    assert one.ratio_low != two.ratio_low
    assert one.ratio_low == pytest.approx(two.ratio_low, rel=0.1)


def test_pairing_makes_intervals_narrow(synthetic):
    # B is exactly 10 % slower for every request, which differ by a factor of 20 among themselves.
    waits = [0.5 + index % 20 for index in range(100)]
    runs = []
    for factor in (1.0, 1.1):
        times = [[index + factor * wait] for index, wait in enumerate(waits)]
        rows = [synthetic.request_row(n, part, scheduled_s=n) for n, part in enumerate(times)]
        runs.append(figures(synthetic.run_of(rows, times)))
    ttft = changes(*runs)["ttft_mean"]
    assert (ttft.ratio_low, ttft.ratio_high) == pytest.approx((1.1, 1.1))
    assert ttft.verdict is Verdict.worse


def test_from_nothing_to_something_is_judged_by_the_difference(synthetic):
    runs = []
    for gap in (0.1, 0.3):  # readers of 10 tokens/s: on time, or 0.2 s late each time
        times = [[n + 1 + gap * k for k in range(20)] for n in range(40)]
        rows = [synthetic.request_row(n, part, scheduled_s=n) for n, part in enumerate(times)]
        runs.append(figures(synthetic.run_of(rows, times)))
    stall = changes(*runs)["stall_count"]
    assert (stall.baseline, stall.verdict) == (0, Verdict.worse)
    assert math.isnan(stall.ratio) and math.isnan(stall.ratio_low)
    assert stall.difference_low > 0
    assert changes(runs[1], runs[0])["stall_count"].verdict is Verdict.better


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"requested_tokens": 9}, "requested_tokens of request 0 is 9 and not 2"),
        ({"rate": 11.0}, "rate of request 0 is 11 and not 10"),
        ({"scheduled_s": 0.5}, "scheduled_s of request 0 is 0.5 and not 0"),
        ({"ttft_slo_s": 1.0}, "ttft_slo_s of request 0 is 1 and not nan"),
        ({"session": "x"}, "its conversations are others"),
        ({"index": 3}, "its requests are others of the trace"),
    ],
)
def test_another_trace_is_refused_with_the_reason(synthetic, columns, message):
    one = synthetic.run_of([synthetic.request_row(0, [1.0, 2.0])], [[1.0, 2.0]], name="a")
    row = {**synthetic.request_row(0, [1.0, 2.0]), **columns}
    other = synthetic.run_of([row], [[1.0, 2.0]], name="b")
    judged = figures(one), figures(other)
    with pytest.raises(ReportError, match=f"b did not serve the same trace as a: {message}"):
        compare(judged[0], [judged[1]])
    allowed = compare(judged[0], [judged[1]], allow_different=True).others[0]
    assert allowed.mismatch == message


def test_what_depends_on_answers_may_differ(synthetic):
    # A later turn is due when the one before has been read; its prompt holds that answer.
    one = synthetic.request_row(0, [5.0], turn=1, scheduled_s=3.0)
    two = synthetic.request_row(0, [5.0], turn=1, scheduled_s=4.0, prompt_tokens=120)
    runs = [figures(synthetic.run_of([row], [[5.0]])) for row in (one, two)]
    assert compare(runs[0], [runs[1]]).others[0].mismatch is None


def test_another_number_of_requests_is_refused_or_unpaired(synthetic):
    one = figures(synthetic.make_run("stock", readers=20))
    two = figures(synthetic.make_run("stock", readers=30))
    with pytest.raises(ReportError, match="as stock: 20 requests against 30"):
        compare(one, [two])
    assert compare(one, [two], allow_different=True).others[0].mismatch


def test_other_options_and_single_runs_are_refused(pair, judged):
    with pytest.raises(ReportError, match="with other options"):
        compare(judged[0], [figures(pair[1], Options(ttft_penalty=1.0))])
    with pytest.raises(ReportError, match="at least two runs"):
        compare(judged[0], [])


def test_runs_without_requests_are_refused(synthetic):
    empty = figures(synthetic.run_of([], []))
    with pytest.raises(ReportError, match="no request counts"):
        compare(empty, [empty])


def test_what_was_not_measured_has_no_verdict(one_request):
    alone = figures(one_request([1.0]))
    found = changes(alone, alone)
    assert found["tbt_p99"].verdict is Verdict.unknown
    assert found["goodput"].verdict is Verdict.unknown


def test_more_than_two_runs(judged):
    third = dataclasses.replace(judged[1])
    comparison = compare(judged[0], [judged[1], third])
    assert len(comparison.runs) == 3
    assert comparison.others[0].changes == comparison.others[1].changes
