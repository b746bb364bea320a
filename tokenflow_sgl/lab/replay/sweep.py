"""A sweep: the same trace at one load after the other, a run for each, in one folder."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenflow_sgl.lab.replay.live import Observer
from tokenflow_sgl.lab.replay.replay_options import (
    ReplayError,
    ReplayOptions,
    StoppedReplayError,
    TargetError,
)
from tokenflow_sgl.lab.replay.replayer import replay
from tokenflow_sgl.lab.replay.target import Target
from tokenflow_sgl.lab.report.goal import Goal
from tokenflow_sgl.lab.report.load_sweep import (
    LoadKind,
    LoadPoint,
    LoadSweep,
    Measured,
    measure,
    point,
    write_sweep,
)
from tokenflow_sgl.lab.runs.store import write_run
from tokenflow_sgl.lab.traces import transform
from tokenflow_sgl.lab.traces.request import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """What a sweep consists of.

    Attributes:
        kind: What differs from point to point.
        loads: Of the points: requests under way, or arrivals per second.
        repeats: Runs of each point; all points are measured once before any is repeated.
        goals: Of a stream; its goodput is counted for each.
        gpus: That the server has; None: as it says.
    """

    kind: LoadKind
    loads: tuple[float, ...]
    repeats: int = 1
    goals: tuple[Goal, ...] = ()
    gpus: int | None = None

    def steps(self) -> Iterator[tuple[int, int, float]]:
        """Each run: its number, its repeat from 0, and its load."""
        count = len(self.loads)
        for number in range(self.repeats * count):
            yield number, number // count, self.loads[number % count]

    def folder(self, load: float, repeat: int) -> str:
        """Name of a run's folder."""
        return f"{self.kind}-{load:g}" + (f"-{repeat + 1}" if self.repeats > 1 else "")

    def check(self, trace: Trace, options: ReplayOptions) -> None:
        """Refuse what cannot be measured, before any request to the server.

        Raises:
            ReplayError: A closed loop would never be full with requests that count.
        """
        counted = len(trace.requests) - options.warm_up_requests
        if self.kind is LoadKind.concurrency and max(self.loads) >= counted:
            raise ReplayError(
                f"--concurrency is {max(self.loads):g}; allowed is less than the requests that "
                f"count, which are {max(counted, 0):,} of {trace.name}. Give a longer trace, or a "
                "shorter --warm-up"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepControl:
    """What leads a sweep, and who is told how it goes.

    Attributes:
        find: Finds the server; called before each run, because its counters go on.
        stop: Once set, the run under way is cut off, and the sweep is over.
        begins: Before each run: its load, its repeat from 0, and the server.
        ends: After each run: its load and its figures.
        observe: Twice per second, as in `replay`.
    """

    find: Callable[[], Awaitable[Target]]
    stop: asyncio.Event
    begins: Callable[[float, int, Target], None]
    ends: Callable[[float, Measured], None]
    observe: Observer


async def sweep(
    trace: Trace, options: ReplayOptions, plan: SweepPlan, folder: Path, control: SweepControl
) -> LoadSweep:
    """Replay a trace at each load, and write all runs and the sweep.

    Every run has prompts of its own, for a server may still hold those of the run before. Arrivals
    have one seed for each repeat, so that points differ in their rate only.

    Args:
        trace: What is asked.
        options: How. Name and seed are those that the runs' own are made of.
        plan: The points.
        folder: Where all is written, also after each run, in case there is no end.
        control: Leads it.

    Raises:
        ReplayError: As `replay`, of the first run; later ones end the sweep, which says so.
    """
    name = options.name or trace.name
    measured: dict[float, list[Measured]] = {load: [] for load in plan.loads}
    gpus, ended_early = plan.gpus, None

    def result() -> LoadSweep:
        points = tuple(point(load, found) for load, found in measured.items() if found)
        return LoadSweep(
            name=name,
            kind=plan.kind,
            trace=trace.name,
            goals=tuple(map(str, plan.goals)),
            gpus=gpus,
            points=points,
            notes=tuple(_notes(plan.kind, points, options)),
            ended_early=ended_early,
            interrupted=control.stop.is_set(),
        )

    for number, repeat, load in plan.steps():
        asked, how = _of_run(trace, options, plan, number, repeat, load)
        try:
            target = await control.find()
            gpus = gpus or target.gpus
            control.begins(load, repeat, target)
            run = await replay(asked, target, how, observe=control.observe, stop=control.stop)
        except (TargetError, StoppedReplayError) as error:
            if not number:
                raise
            text = str(error)
            ended_early = text if text.endswith(".") else f"{text}."
            break
        run_name = plan.folder(load, repeat)
        write_run(folder / run_name, run)
        found = measure(run_name, run, plan.kind, plan.goals, gpus)
        measured[load].append(found)
        control.ends(load, found)
        if control.stop.is_set():
            ended_early = f"interrupted in run {number + 1} of {plan.repeats * len(plan.loads)}."
            break
        write_sweep(folder, result())
    whole = result()
    write_sweep(folder, whole)
    return whole


def _of_run(
    trace: Trace, options: ReplayOptions, plan: SweepPlan, number: int, repeat: int, load: float
) -> tuple[Trace, ReplayOptions]:
    """What one run asks, and how."""
    label = f"{options.name or trace.name}, {plan.kind.text(load)}"
    how = dataclasses.replace(options, name=label, seed=options.seed + number)
    if plan.kind is LoadKind.concurrency:
        return trace, dataclasses.replace(how, concurrency=int(load))
    return transform.poisson_arrivals(trace, load, options.seed + repeat), how


def _notes(kind: LoadKind, points: tuple[LoadPoint, ...], options: ReplayOptions) -> Iterator[str]:
    """What to know of the figures."""
    if not (options.warm_up_requests or options.warm_up_s):
        yield (
            "Note: without --warm-up the figures contain the beginning, when the server is empty."
        )
    short = [
        kind.text(each.load)
        for each in points
        if not each.mean("window_s") >= each.mean("e2e_mean_s")
        and not math.isnan(each.mean("e2e_mean_s"))
    ]
    if short:
        yield (
            f"Note: too short to be steady at {', '.join(short)}: requests were sent for less time "
            "than an answer takes. Take a longer trace."
        )
