"""Whether our scheduler helps some traffic on a device, from what load on, and what it costs.

The trace is served at a few loads around its own, under SGLang's own settings and under ours. What
decides is the share of the readers that are served well; what it costs is said beside that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from tokenflow_sgl.lab.profiles import DeviceProfile
from tokenflow_sgl.lab.report.goal import Goal
from tokenflow_sgl.lab.sim.engine_options import EngineOptions
from tokenflow_sgl.lab.sim.run import simulate
from tokenflow_sgl.lab.sim.study.own_settings import (
    DEFAULTS,
    SETTINGS,
    TOKENFLOW,
    Felt,
    felt,
    with_one_flag,
)
from tokenflow_sgl.lab.sim.study.spread import Spread
from tokenflow_sgl.lab.traces import Trace, transform
from tokenflow_sgl.lab.traces.repeat import period_s
from tokenflow_sgl.qos.classes import SHIPPED_CLASSES, QosClasses

LOADS = (0.7, 1.0, 1.4, 2.0)
"""Multiples of the trace's own arrivals."""
AS_SHORT = 1.02
"""Times the shortest mean answer up to which another one counts as short."""
MATTERS = 0.01
"""Share of the readers from which on a difference counts as one."""


@dataclass(frozen=True, slots=True)
class AdviceSetup:
    """What all runs share.

    Attributes:
        trace: The requests and their times.
        profile: The device, or a group of them.
        options: SGLang's defaults there.
        goal: What serves a reader well.
        ranks: Devices of the group.
        known_lengths: Whether the server knows when each answer ends; see `simulate`.
        classes: Of the server.
    """

    trace: Trace
    profile: DeviceProfile
    options: EngineOptions
    goal: Goal
    ranks: int = 1
    known_lengths: bool = False
    classes: QosClasses = SHIPPED_CLASSES

    @property
    def loads(self) -> tuple[float, ...]:
        """Multiples of the trace's arrivals; only its own where all come at once."""
        return LOADS if period_s(self.trace) else (1.0,)

    @property
    def with_one_flag(self) -> EngineOptions:
        """SGLang's settings under our scheduler."""
        return with_one_flag(self.profile, self.options, self.ranks)

    @property
    def host_gb(self) -> float:
        """GB of host memory that each rank takes under our scheduler."""
        tokens = self.with_one_flag.host_tokens
        return tokens * self.profile.kv_bytes_per_token / self.ranks / 1e9


class Effect(Enum):
    """What our scheduler does to the share of the readers that are served well."""

    helps = "helps"
    same = "makes no difference"
    harms = "harms"


@dataclass(frozen=True, slots=True)
class LoadFound:
    """What was found at one load.

    Attributes:
        load: Multiple of the trace's arrivals.
        rate: Requests per second; 0.0: all come at once.
        runs: What readers feel, by setting.
    """

    load: float
    rate: float
    runs: dict[str, Felt]

    @property
    def best(self) -> str:
        """Which of SGLang's own settings serves most readers well, with the fewest stalls.

        Of several the one with the shortest answers, but the defaults where theirs are as short.
        """

        def key(name: str) -> tuple[float, float]:
            return -round(self.runs[name]["served_well"], 3), round(
                self.runs[name]["stalled_share"], 3
            )

        def answer(name: str) -> float:
            return self.runs[name]["e2e_mean"]

        own = [name for name in self.runs if name != TOKENFLOW]
        alike = [name for name in own if key(name) == min(map(key, own))]
        best = min(alike, key=answer)
        as_short = DEFAULTS in alike and answer(DEFAULTS) <= AS_SHORT * answer(best)
        return DEFAULTS if as_short else best

    @property
    def gain(self) -> float:
        """Share of the readers served well that our scheduler adds to the best of SGLang's."""
        return self.runs[TOKENFLOW]["served_well"] - self.runs[self.best]["served_well"]

    @property
    def effect(self) -> Effect:
        """Whether that is a difference."""
        if abs(self.gain) < MATTERS:
            return Effect.same
        return Effect.helps if self.gain > 0.0 else Effect.harms


@dataclass(frozen=True, slots=True)
class Advice:
    """What was found at all loads, in ascending order of them."""

    loads: tuple[LoadFound, ...]

    def those(self, effect: Effect) -> tuple[LoadFound, ...]:
        """The loads with this effect."""
        return tuple(each for each in self.loads if each.effect is effect)

    @property
    def helps(self) -> bool:
        """Whether it helps at any load."""
        return bool(self.those(Effect.helps))

    @property
    def judged(self) -> LoadFound:
        """The load by which it is judged: the first at which it helps; else harms; else the own."""
        told = self.those(Effect.helps) or self.those(Effect.harms)
        return told[0] if told else min(self.loads, key=lambda each: abs(each.load - 1.0))


Job = tuple[float, str]
"""A load, and the name of a setting."""


def advise(
    setup: AdviceSetup, *, spread: Spread, done: Callable[[], None] = lambda: None
) -> Advice:
    """Serve the trace at all loads under all settings.

    Args:
        setup: What is served, and where.
        spread: Where the runs are done.
        done: Called as each run ends.
    """
    # What takes longest comes first, so that no core waits for the last one.
    names = sorted(SETTINGS, key=lambda name: name != TOKENFLOW)
    jobs: Sequence[Job] = [(load, name) for name in names for load in reversed(setup.loads)]
    found: dict[Job, Felt] = {}
    for job, run in zip(jobs, spread(run_of, setup, jobs), strict=True):
        found[job] = run
        done()
    period = period_s(setup.trace)
    rate = len(setup.trace.requests) / period if period else 0.0
    return Advice(
        tuple(
            LoadFound(load, load * rate, {name: found[load, name] for name in SETTINGS})
            for load in setup.loads
        )
    )


def run_of(setup: AdviceSetup, job: Job) -> Felt:
    """What readers feel at one load under one setting."""
    load, name = job
    setting = SETTINGS[name]
    base = setup.with_one_flag if name == TOKENFLOW else setup.options
    trace = setup.trace if load == 1.0 else transform.speed_up(setup.trace, load)
    done = simulate(
        trace,
        setup.profile,
        replace(base, **setting.settings),
        policy=setting.policy,
        known_lengths=setup.known_lengths,
        classes=setup.classes,
    )
    return felt(done.run, setup.goal)
