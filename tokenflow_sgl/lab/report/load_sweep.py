"""A sweep of one load after the other: its figures, their intervals, and its two files.

    SWEEP/sweep.json   all of it (`LoadSweep`)
    SWEEP/sweep.csv    a row for each point
    SWEEP/RUN/         the runs behind it, one for each point and repeat

Requests count from the end of the warm-up on. Rates are those of the steady window, which is over
when the last request is sent: from then on the load decays.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from tokenflow_sgl.lab.report.goal import Goal
from tokenflow_sgl.lab.report.report_options import ReportError
from tokenflow_sgl.lab.report.run_figures import figures
from tokenflow_sgl.lab.runs.recording import BoolArray
from tokenflow_sgl.lab.runs.store import Run

SWEEP = "sweep.json"
FORMAT = 1
_CONFIDENCE = 0.95


class LoadKind(StrEnum):
    """What is the same all through a run, and other from point to point."""

    concurrency = "concurrency"
    """Requests under way."""
    rate = "rate"
    """Arrivals per second, as a Poisson process."""

    def text(self, load: float) -> str:
        """A load with its unit, as in "concurrency 8"."""
        return f"{self} {load:g}" + ("/s" if self is LoadKind.rate else "")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure over the repeats of a point.

    Attributes:
        mean: Over the repeats; NaN: nothing was measured.
        ci95: Half the width of the 95 % confidence interval of the mean, by Student's t; None: one
            repeat has none.
    """

    mean: float
    ci95: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """The mean of what was measured, and how sure it is."""
        known = np.array([value for value in values if math.isfinite(value)])
        if known.size < 2:
            return cls(float(known[0]) if known.size else math.nan)
        error = float(known.std(ddof=1)) / math.sqrt(known.size)
        t = float(stdtrit(known.size - 1, (1 + _CONFIDENCE) / 2))
        return cls(float(known.mean()), t * error)


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One load of a sweep.

    Attributes:
        load: Requests under way, or arrivals per second.
        runs: Folders of its runs, one for each repeat.
        requests: Requests of one run that count.
        figures: By name; `measure` says which there are.
        invalid: Why they must not be trusted, in sentences; empty: valid.
        interrupted: Its last run was stopped before its end.
    """

    load: float
    runs: tuple[str, ...]
    requests: int
    figures: Mapping[str, Estimate]
    invalid: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def counts(self) -> bool:
        """Whether its figures may be compared."""
        return not self.invalid and not self.interrupted

    @property
    def state(self) -> str:
        """INVALID, INTERRUPTED, or nothing."""
        return "INVALID" if self.invalid else "INTERRUPTED" if self.interrupted else ""

    def mean(self, name: str) -> float:
        """A figure's mean; NaN where it was not measured."""
        found = self.figures.get(name)
        return math.nan if found is None else found.mean


@dataclass(frozen=True, slots=True)
class LoadSweep:
    """A sweep, measured.

    Attributes:
        name: Label in tables and legends.
        kind: What differs from point to point.
        trace: Name of the trace.
        goals: Of a stream, as texts that `parse_goal` reads.
        gpus: That the server has; None: unknown.
        points: In the order that was asked for; those that were not reached are missing.
        notes: Remarks on the figures, in sentences.
        ended_early: Why points or repeats are missing, in a sentence; None: none is.
        interrupted: By the user.
        format: Version of the file.
    """

    name: str
    kind: LoadKind
    trace: str
    goals: tuple[str, ...]
    gpus: int | None
    points: tuple[LoadPoint, ...]
    notes: tuple[str, ...] = ()
    ended_early: str | None = None
    interrupted: bool = False
    format: int = field(default=FORMAT)


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of a point.

    Attributes:
        run: Name of its folder.
        requests: That count.
        figures: By name, as in `LoadPoint`.
        invalid: Why they must not be trusted.
        interrupted: It was stopped before its end.
    """

    run: str
    requests: int
    figures: Mapping[str, float]
    invalid: tuple[str, ...]
    interrupted: bool


def goodput_of(goal: str) -> str:
    """Name of the figure: requests per second whose streams kept a goal."""
    return f"goodput_per_s {goal}"


def share_of(goal: str) -> str:
    """Name of the figure: share of the streams that kept a goal."""
    return f"good_share {goal}"


def measure(
    name: str, run: Run, kind: LoadKind, goals: Sequence[Goal], gpus: int | None
) -> Measured:
    """The figures of one run of a sweep: seconds, shares, and rates of the steady window.

    Args:
        name: Of its folder.
        run: The run.
        kind: Of the sweep.
        goals: Whose streams are counted.
        gpus: That the server has; None: unknown.

    Raises:
        RunError: The run's tables contradict each other.
    """
    found = figures(run)
    latency = found.latency
    window_s, sent_per_s, tokens_per_s = _steady(run, kind)
    values = {
        "window_s": window_s,
        "sent_per_s": sent_per_s,
        "ttft_mean_s": latency.ttft.mean,
        "ttft_p50_s": latency.ttft.p50,
        "ttft_p99_s": latency.ttft.p99,
        "itl_mean_s": latency.tpot.mean,
        "itl_p99_s": latency.tpot.p99,
        "tbt_p99_s": latency.tbt.p99,
        "e2e_mean_s": latency.e2e.mean,
        "e2e_p99_s": latency.e2e.p99,
        "stalled_share": found.readers.stalled_share,
        "tokens_per_s": tokens_per_s,
    }
    if gpus is not None:
        values["tokens_per_s_per_gpu"] = tokens_per_s / gpus
    for goal in goals:
        met = goal.met(run)
        share = float(met.mean()) if met.size else math.nan
        values[share_of(str(goal))] = share
        values[goodput_of(str(goal))] = share * sent_per_s
    return Measured(
        name, found.requests.counted, values, tuple(run.info.invalid), run.info.interrupted
    )


def point(load: float, measured: Sequence[Measured]) -> LoadPoint:
    """A point of its runs; one that was interrupted counts only where there is no whole one."""
    whole = [each for each in measured if not each.interrupted] or list(measured)
    return LoadPoint(
        load=load,
        runs=tuple(each.run for each in measured),
        requests=whole[0].requests,
        figures={
            name: Estimate.of([each.figures[name] for each in whole]) for name in whole[0].figures
        },
        invalid=tuple(dict.fromkeys(reason for each in whole for reason in each.invalid)),
        interrupted=whole[0].interrupted,
    )


def _steady(run: Run, kind: LoadKind) -> tuple[float, float, float]:
    """Length of the steady window, and requests and tokens in it per second; NaN: there is none.

    It begins when the first request that counts is due, and ends with the last one that is due by
    itself: in a closed loop the last one, else the last one that follows no answer. What runs then
    counts in part, in both rates, that of the warm-up, too.
    """
    table = run.requests
    due = np.asarray(table["scheduled_s"].to_numpy(zero_copy_only=False), dtype=np.float64)
    sent = ~np.isnan(due) & np.asarray(table["sent_s"].is_valid())
    counted = sent & ~np.asarray(table["warm_up"].to_numpy(zero_copy_only=False))
    alone = sent
    if kind is LoadKind.rate:
        alone = sent & _first_turns(table["session"].to_pylist())
    if not counted.any() or not alone.any():
        return (math.nan,) * 3
    begin, end = float(due[counted].min()), float(due[alone].max())
    if not end > begin:
        return (math.nan,) * 3
    # The first one begins the window: what is counted are the steps from one to the next.
    requests = np.count_nonzero((due > begin) & (due <= end) & sent)
    times = run.tokens["time_s"].to_numpy()
    tokens = np.count_nonzero((times > begin) & (times <= end))
    return end - begin, requests / (end - begin), tokens / (end - begin)


def _first_turns(sessions: Sequence[str | None]) -> BoolArray:
    """Which requests follow no answer: the first of each session in the trace, and single ones."""
    seen: set[str] = set()
    first = np.ones(len(sessions), dtype=np.bool_)
    for index, name in enumerate(sessions):
        if name is not None:
            first[index] = name not in seen
            seen.add(name)
    return first


# ---- files ------------------------------------------------------------------------------


def write_sweep(folder: Path, sweep: LoadSweep) -> None:
    """Write both files of a sweep; those of the same name are replaced."""
    text = json.dumps(sweep_object(sweep), indent=2, allow_nan=False, ensure_ascii=False)
    (folder / SWEEP).write_text(text + "\n", encoding="utf-8")
    with (folder / "sweep.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(_rows(sweep))


def sweep_object(sweep: LoadSweep) -> dict[str, Any]:
    """A sweep as an object for JSON; a figure that was not measured is None."""
    found = asdict(sweep)
    for each, made in zip(found["points"], sweep.points, strict=True):
        each["valid"] = made.counts
        for value in each["figures"].values():
            value["mean"] = _finite(value["mean"])
    return found


def read_sweep(folder: Path) -> LoadSweep:
    """Read a sweep from its folder.

    Raises:
        ReportError: There is none, it is not whole, or of another version.
    """
    try:
        found = json.loads((folder / SWEEP).read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise ReportError(f"{folder}: {SWEEP} is not of format {FORMAT}, which this reads")
        points = tuple(_read_point(each) for each in found["points"])
        texts = {name: tuple(map(str, found[name])) for name in ("goals", "notes")}
        kind, gpus = LoadKind(found["kind"]), found["gpus"]
        known = {**found, **texts, "kind": kind, "points": points}
        sweep = LoadSweep(**{**known, "name": str(found["name"]), "trace": str(found["trace"])})
        if not points or not (gpus is None or (type(gpus) is int and gpus > 0)):
            raise ValueError
    except ReportError:
        raise
    except OSError as error:
        raise ReportError(f"{folder / SWEEP}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ReportError(
            f"{folder}: {SWEEP} is not what `tokenflow replay` writes of a sweep "
            f"({type(error).__name__}). Next: sweep again"
        ) from error
    return sweep


def _read_point(found: Mapping[str, Any]) -> LoadPoint:
    values = {
        str(name): Estimate(
            math.nan if value["mean"] is None else float(value["mean"]),
            None if value["ci95"] is None else float(value["ci95"]),
        )
        for name, value in found["figures"].items()
    }
    return LoadPoint(
        load=float(found["load"]),
        runs=tuple(map(str, found["runs"])),
        requests=int(found["requests"]),
        figures=values,
        invalid=tuple(map(str, found["invalid"])),
        interrupted=bool(found["interrupted"]),
    )


def _rows(sweep: LoadSweep) -> list[list[object]]:
    """Head and rows of the table for other programs; columns of intervals where there are any."""
    names = list(sweep.points[0].figures)
    repeated = any(each.ci95 is not None for row in sweep.points for each in row.figures.values())
    columns = [(name, suffix) for name in names for suffix in ("", "_ci95")[: 1 + repeated]]
    head = [sweep.kind, "repeats", "requests", "state", *(f"{a}{b}" for a, b in columns)]
    rows: list[list[object]] = [list(head)]
    for each in sweep.points:
        cells: list[object] = [f"{each.load:g}", len(each.runs), each.requests, each.state]
        for name, suffix in columns:
            value = each.figures[name]
            number = value.ci95 if suffix else _finite(value.mean)
            cells.append("" if number is None else f"{number:.6g}")
        rows.append(cells)
    return rows


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
