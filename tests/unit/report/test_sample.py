from __future__ import annotations

import numpy as np
import pytest

from tokenflow_sgl.lab.report import CATALOGUE, Options, figures
from tokenflow_sgl.lab.report import sample as module
from tokenflow_sgl.lab.report.sample import Columns, Sample


def columns(found):
    return Columns(found.judged, found.options)


@pytest.mark.parametrize("which", [0, 1])
def test_the_requests_themselves_give_the_run_s_figures(pair, which):
    found = figures(pair[which], Options(ttft_penalty=0.2, stall_penalty=0.3))
    itself = Sample(columns(found), np.arange(len(found.judged))[None, :])
    for figure in CATALOGUE:
        expected, got = figure.value(found), figure.resampled(itself)
        assert got.shape == (1,)
        assert got[0] == pytest.approx(expected, rel=1e-9, nan_ok=True), figure.key


def test_failures_and_gaps_too(synthetic):
    row, times = synthetic.request_row, [[1.0, 1.5, 4.0], [], [2.0], [3.0, 3.0]]
    rows = [
        row(0, times[0]),
        row(1, [], error="boom", ended_s=3.0, requested_tokens=9),
        row(2, times[2], ttft_slo_s=1.0),
        row(3, times[3], requested_tokens=5, ended_s=None, tbt_slo_s=1.0),
    ]
    found = figures(synthetic.run_of(rows, times, duration_s=9.0))
    itself = Sample(columns(found), np.arange(4)[None, :])
    for figure in CATALOGUE:
        assert figure.resampled(itself)[0] == pytest.approx(figure.value(found), nan_ok=True)


def test_a_drawn_set_is_the_run_of_these_requests(pair, synthetic):
    found = figures(pair[1])
    rows = np.random.default_rng(5).integers(0, 60, (3, 60))
    drawn = Sample(columns(found), rows)
    for number, one in enumerate(rows):
        gaps = np.concatenate([found.judged.streams[row].tbt_seconds for row in one])
        for percent in (50, 99, 99.9):
            got = drawn.gap_percentile(percent)[number]
            assert got == pytest.approx(np.percentile(gaps, percent))
        ttft = [found.judged.streams[row].ttft for row in one]
        assert drawn.percentile("ttft", 95)[number] == pytest.approx(np.percentile(ttft, 95))
        ends = [found.judged.streams[row].end for row in one]
        arrivals = [found.judged.streams[row].arrival for row in one]
        assert drawn.makespan[number] == pytest.approx(max(ends) - min(arrivals))


def test_very_many_gaps_are_rounded_a_little(pair, monkeypatch):
    found = figures(pair[1])
    rows = np.random.default_rng(5).integers(0, 60, (3, 60))
    exact = Sample(columns(found), rows)
    monkeypatch.setattr(module, "_MOST_VALUES", 400)
    rounded = Sample(columns(found), rows)
    for percent in (50, 90, 99, 99.9):
        np.testing.assert_allclose(
            rounded.gap_percentile(percent), exact.gap_percentile(percent), rtol=0.03
        )
