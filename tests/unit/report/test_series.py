"""What the plots are drawn from, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tokenflow_sgl.lab.report import figures
from tokenflow_sgl.lab.report.reading import Reading, pick_streams, worst_rows
from tokenflow_sgl.lab.report.time_windows import (
    distribution,
    population,
    token_rate,
    window_edges,
    windows,
)


@pytest.fixture
def judged(synthetic):
    """Readers of 1 token/s: 0 due at 0, tokens at 1, 1, 1, 6; 1 due at 2, token at 4, broke off at
    8 with a second one still to come.
    """
    row, times = synthetic.request_row, [[1.0, 1.0, 1.0, 6.0], [4.0]]
    rows = [
        row(0, times[0], rate=1.0, ttft_slo_s=2.0),
        row(1, times[1], rate=1.0, scheduled_s=2.0, requested_tokens=2, ended_s=8.0, error="boom"),
    ]
    return figures(synthetic.run_of(rows, times, duration_s=8.0)).judged


def test_unread_seconds(judged):
    unread = Reading(judged).unread_seconds(np.array([0.5, 1.0, 2.5, 4.0, 5.0, 6.5, 7.9]))
    # Request 0 has 3 s to read at 1 s, is dry from 4 s on, and no output is due after 6 s.
    np.testing.assert_allclose(unread[0], [np.nan, 3, 1.5, 0, 0, np.nan, np.nan])
    np.testing.assert_allclose(unread[1], [np.nan, np.nan, np.nan, 1, 0, 0, 0])


def test_bands_are_percentiles_of_those_that_read(pair):
    reading = Reading(figures(pair[1]).judged)
    grid = np.linspace(reading.start, reading.end, 30)
    bands, readers = reading.buffer_bands(grid)
    unread = reading.unread_seconds(grid)
    for column in range(grid.size):
        present = unread[~np.isnan(unread[:, column]), column]
        assert readers[column] == present.size
        if present.size:
            expected = np.percentile(present, (5, 25, 50, 75, 95))
            np.testing.assert_allclose(bands[:, column], expected)
        else:
            assert np.isnan(bands[:, column]).all()


def test_stall_map(judged):
    cells = Reading(judged).stall_map(columns=8)
    assert cells.per_row == 1
    np.testing.assert_allclose(cells.waiting, [[1, 0, 0, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0]])
    np.testing.assert_allclose(cells.stalled, [[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1]])
    np.testing.assert_allclose(cells.reading, [[0, 1, 1, 1, 0, 0, 1, 0], [0, 0, 0, 0, 1, 0, 0, 0]])


def test_rows_of_the_map_are_means(judged):
    cells = Reading(judged).stall_map(columns=8, rows=1)
    assert cells.per_row == 2
    np.testing.assert_allclose(cells.stalled, [[0, 0, 0, 0, 0.5, 1, 0.5, 0.5]])


def test_the_map_loses_no_stall(pair):
    for run in pair:
        found = figures(run)
        cells = Reading(found.judged).stall_map(columns=77, rows=13)
        width = np.diff(cells.edges)[None, :]
        requests = np.full((len(cells.stalled), 1), cells.per_row)
        requests[-1] = len(found.judged) - cells.per_row * (len(requests) - 1)
        total = float((cells.stalled * width * requests).sum())
        assert total == pytest.approx(found.readers.stall_seconds, abs=1e-6)


def test_curves(judged):
    at, received, taken = Reading(judged).curves(0, points=7)  # 0 to 6 s
    np.testing.assert_allclose(at, np.arange(7))
    np.testing.assert_allclose(received, [0, 3, 3, 3, 3, 3, 4])
    np.testing.assert_allclose(taken, [0, 1, 2, 3, 3, 3, 4])


def test_population_and_tokens(judged):
    waiting, running = population(judged, np.array([0.0, 1.0, 2.0, 4.0, 6.0, 8.0]))
    np.testing.assert_allclose(waiting, [1, 0, 1, 0, 0, 0])
    np.testing.assert_allclose(running, [0, 1, 1, 2, 1, 0])
    np.testing.assert_allclose(token_rate(judged, np.array([0.0, 2.0, 8.0])), [1.5, 2 / 6])


def test_windows(judged):
    cells = windows(judged, np.array([0.0, 2.0, 4.0]))
    np.testing.assert_allclose(cells.offered, [0.5, 0.5])
    np.testing.assert_allclose(cells.good, [0.5, 0.0])


def test_window_edges_are_round_and_cover():
    edges = window_edges(0.0, 17.0, 10)
    assert edges[1] == 2.0
    assert (edges[0], edges[-1]) == (0.0, 18.0)


def test_distribution():
    values, shares = distribution(np.array([3.0, 1.0]), total=4)
    np.testing.assert_allclose(values, [1, 3])
    np.testing.assert_allclose(shares, [0.25, 0.5])
    _, read = distribution(np.array([0.0, 0.0, 2.0]), 3, at=np.array([1.0, 2.0]))
    np.testing.assert_allclose(read, [2 / 3, 1])


def test_rows_worth_a_look(judged):
    assert pick_streams([judged]) == [
        ("longest stalls", 0, 1),
        ("longest TTFT", 0, 1),
        ("median TTFT", 0, 0),
    ]
    assert worst_rows(judged, 5) == [1, 0]  # 2 + 3 s against 1 + 2 s


def test_the_longest_stalls_may_be_in_another_run(judged, one_request):
    calm = figures(one_request([1.0])).judged
    assert pick_streams([calm, judged])[0] == ("longest stalls", 1, 1)
    assert [title for title, _, _ in pick_streams([calm])] == ["longest TTFT", "median TTFT"]
