"""Sweeps: estimates, steady windows, the two files, what is said of them, and the picture."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace

import pytest
from made_runs.synthetic import request_row, run_of
from rich.console import Console

from tokenflow_sgl.lab.report import ReportError
from tokenflow_sgl.lab.report.goal import parse_goal
from tokenflow_sgl.lab.report.load_sweep import (
    Estimate,
    LoadKind,
    LoadPoint,
    LoadSweep,
    goodput_of,
    measure,
    point,
    read_sweep,
    share_of,
    write_sweep,
)
from tokenflow_sgl.lab.report.pareto import frontier, plot_pareto
from tokenflow_sgl.lab.report.sweep_view import print_sweep, verdicts

GOAL = "ttft<=2,stall<=0.5"


def test_an_interval_is_students() -> None:
    found = Estimate.of([1.0, 2.0, 3.0])
    # t of 2 degrees of freedom at 97.5 %, by any table.
    assert (found.mean, found.ci95) == (2.0, pytest.approx(4.302653 / math.sqrt(3), rel=1e-6))
    assert Estimate.of([2.0, 4.0]).ci95 == pytest.approx(12.706205, rel=1e-6)
    assert Estimate.of([1.5]) == Estimate(1.5, None), "one repeat says nothing of others"
    assert Estimate.of([1.5, math.nan]) == Estimate(1.5, None)
    assert math.isnan(Estimate.of([]).mean)


def stream(index, due, *, tokens=10, gap=0.1, wait=0.5, **more):
    times = [due + wait + gap * number for number in range(tokens)]
    return request_row(index, times, scheduled_s=due, **more), times


def run_with(*streams, **info):
    rows, times = zip(*streams, strict=True)
    return run_of(list(rows), list(times), name="r", **info)


def test_rates_are_of_the_steady_window() -> None:
    """From the end of the warm-up until the last request was sent, whatever runs then."""
    run = run_with(
        stream(0, 0.0, warm_up=True, tokens=40),  # 0.5 to 4.4 s
        stream(1, 2.0),  # 2.5 to 3.4 s
        stream(2, 4.0),  # 4.5 to 5.4 s
        stream(3, 6.0),  # after the window, but it counts
    )
    found = measure("r", run, LoadKind.concurrency, [parse_goal("ttft<=0.6")], 2).figures
    assert found["window_s"] == pytest.approx(4.0)
    assert found["sent_per_s"] == pytest.approx(2 / 4)
    # The warm-up's tokens after 2 s: those of 2.1 to 4.4 s.
    assert found["tokens_per_s"] == pytest.approx((24 + 10 + 10) / 4)
    assert found["tokens_per_s_per_gpu"] == pytest.approx(found["tokens_per_s"] / 2)
    assert found["ttft_mean_s"] == pytest.approx(0.5)
    assert found["itl_mean_s"] == pytest.approx(0.1)
    assert found[share_of("ttft<=0.6")] == 1.0
    assert found[goodput_of("ttft<=0.6")] == pytest.approx(0.5)


def test_goodput_counts_those_within_the_goal_only() -> None:
    run = run_with(stream(0, 0.0), stream(1, 1.0, wait=3.0), stream(2, 2.0), stream(3, 4.0))
    goal = parse_goal("ttft<=2")
    found = measure("r", run, LoadKind.concurrency, [goal], None).figures
    assert found[share_of("ttft<=2")] == 0.75
    assert found[goodput_of("ttft<=2")] == pytest.approx(0.75 * 3 / 4)
    assert "tokens_per_s_per_gpu" not in found


def test_the_window_of_a_rate_is_over_with_the_last_arrival() -> None:
    """A later turn follows an answer: when all others have ended, the load has decayed."""
    run = run_with(stream(0, 0.0, session="a"), stream(1, 2.0), stream(2, 9.0, session="a", turn=1))
    assert measure("r", run, LoadKind.rate, [], None).figures["window_s"] == pytest.approx(2.0)
    closed = measure("r", run, LoadKind.concurrency, [], None)
    assert closed.figures["window_s"] == pytest.approx(9.0)


def test_without_a_window_there_is_no_rate() -> None:
    run = run_with(stream(0, 0.0), stream(1, 0.0))
    found = measure("r", run, LoadKind.concurrency, [], None).figures
    assert math.isnan(found["tokens_per_s"]) and math.isnan(found["window_s"])
    assert found["ttft_mean_s"] == pytest.approx(0.5)


def test_an_interrupted_run_counts_only_where_there_is_no_whole_one() -> None:
    made = measure("a", run_with(stream(0, 0.0), stream(1, 1.0)), LoadKind.rate, [], None)
    cut = replace(made, run="b", interrupted=True, figures={**made.figures, "ttft_mean_s": 9.0})
    both = point(2.0, [made, cut])
    assert (both.runs, both.interrupted, both.mean("ttft_mean_s")) == (("a", "b"), False, 0.5)
    alone = point(2.0, [cut])
    assert (alone.state, alone.mean("ttft_mean_s")) == ("INTERRUPTED", 9.0)


@pytest.fixture
def made() -> LoadSweep:
    """Three points: the second has most goodput, the third is invalid."""

    def one(load, share, tokens, **more):
        figures = {
            "window_s": Estimate(60.0, 1.0),
            "e2e_mean_s": Estimate(5.0, 0.2),
            "ttft_mean_s": Estimate(0.5, 0.05),
            "ttft_p50_s": Estimate(0.4, 0.05),
            "ttft_p99_s": Estimate(1234.5, 100.0),
            "itl_mean_s": Estimate(0.05, 0.001),
            "tbt_p99_s": Estimate(12.0, 0.001),
            "stalled_share": Estimate(0.01, 0.001),
            "tokens_per_s": Estimate(tokens, 12.0),
            share_of(GOAL): Estimate(share, 0.01),
            goodput_of(GOAL): Estimate(share * load / 4, 0.1),
        }
        return LoadPoint(load, ("x-1", "x-2"), 100, figures, **more)

    points = (one(1, 1.0, 40.0), one(8, 0.9, 300.0), one(64, 0.8, 12345.0, invalid=("Late.",)))
    return LoadSweep("stock", LoadKind.concurrency, "t", (GOAL,), None, points)


def test_what_is_wrong_comes_first(made) -> None:
    said = list(verdicts(made))
    assert said == [
        "INVALID: concurrency 64: Late.",
        f"{GOAL}: most goodput at concurrency 8, 1.80 ±0.1 requests/s (90.0% of the readers). At "
        "least 99% up to concurrency 1.",
    ]
    bad = replace(made, points=made.points[2:], ended_early="no server answers.")
    assert list(verdicts(bad))[1:] == [
        "Not whole: no server answers.",
        f"{GOAL}: no valid point says how many requests keep it.",
    ]


@pytest.mark.parametrize("goals", [1, 4])
def test_it_fits_into_80_columns(made, goals) -> None:
    named = [f"{GOAL},e2e<={number}" for number in range(goals)]
    points = tuple(
        replace(
            each,
            figures={
                **each.figures,
                **{share_of(goal): Estimate(0.9, 0.01) for goal in named},
                **{goodput_of(goal): Estimate(0.9, 0.01) for goal in named},
            },
        )
        for each in made.points
    )
    console = Console(width=80, record=True, file=io.StringIO())
    print_sweep(replace(made, goals=tuple(named), points=points), console)
    text = console.export_text()
    tables = text[text.index("at once") :]
    assert max(map(len, tables.splitlines())) <= 80
    assert "tokens/s:" not in tables, "a table, no blocks"
    assert "12,345" in tables and "±100" in tables and "INVALID" in tables
    assert "95 % confidence interval" in tables


def test_files_say_the_same(made, tmp_path) -> None:
    write_sweep(tmp_path, made)
    assert read_sweep(tmp_path) == made
    with (tmp_path / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["concurrency"] for row in rows] == ["1", "8", "64"]
    assert [row["state"] for row in rows] == ["", "", "INVALID"]
    assert (rows[1]["tokens_per_s"], rows[1]["tokens_per_s_ci95"]) == ("300", "12")
    assert rows[1][goodput_of(GOAL)] == "1.8"


def test_one_repeat_has_no_columns_of_intervals(made, tmp_path) -> None:
    figures = {"tokens_per_s": Estimate(math.nan), "e2e_mean_s": Estimate(1.0)}
    one = replace(made, points=(LoadPoint(1.0, ("x",), 9, figures),), goals=())
    write_sweep(tmp_path, one)
    assert "_ci95" not in (tmp_path / "sweep.csv").read_text()
    assert (tmp_path / "sweep.csv").read_text().splitlines()[1] == "1,1,9,,,1"
    read = read_sweep(tmp_path).points[0]
    assert math.isnan(read.mean("tokens_per_s"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 9}, "is not of format 1"),
        ({"kind": "speed"}, "is not what `tokenflow replay` writes"),
        ({"points": []}, "is not what `tokenflow replay` writes"),
        ({"points": [{"load": "x"}]}, "is not what `tokenflow replay` writes"),
        ({"gpus": "two"}, "is not what `tokenflow replay` writes"),
        ({"more": 1}, "is not what `tokenflow replay` writes"),
    ],
)
def test_what_is_no_sweep_is_said(made, tmp_path, change, message) -> None:
    write_sweep(tmp_path, made)
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ReportError, match=message):
        read_sweep(tmp_path)
    path.write_text("[")
    with pytest.raises(ReportError, match="is not what"):
        read_sweep(tmp_path)
    path.unlink()
    with pytest.raises(ReportError, match="No such file"):
        read_sweep(tmp_path)


def test_the_frontier_has_what_no_other_beats() -> None:
    assert frontier([(1.0, 10.0), (0.9, 30.0), (0.8, 20.0), (0.9, 25.0)]) == [1, 0]
    assert frontier([]) == []


def test_two_sweeps_go_into_one_picture(made, tmp_path) -> None:
    path = tmp_path / "both.svg"
    plot_pareto([made, replace(made, name="tokenflow $x$")], path)
    assert path.read_text().startswith("<?xml")
    with pytest.raises(ReportError, match="no goal in common"):
        plot_pareto([made, replace(made, goals=("ttft<=1",))], path)
    with pytest.raises(ReportError, match="7 sweeps; one picture has room for 6"):
        plot_pareto([made] * 7, path)
