"""How many streams per second each scheduler carries while nearly all of them are good enough.

The trace's arrivals are sped up or slowed down, and the highest rate is sought at which the wanted
share of streams meets the goal. What is sped up is repeated, so that arrivals take as long as
before: a burst that is over soon would say nothing of a rate that lasts.

The search assumes that this share does not grow with the rate. That holds by and large, not from
run to run: a little more load can fall luckier. So the answer is the highest rate that was tried
below the lowest one that failed, its neighbours are tried, too, and if one of them fails the search
goes on below it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tokenflow_sgl.lab.profiles import DeviceProfile
from tokenflow_sgl.lab.report.goal import Goal
from tokenflow_sgl.lab.sim.engine_options import EngineOptions, SimulationError
from tokenflow_sgl.lab.sim.run import simulate
from tokenflow_sgl.lab.sim.simulated_streams import DEFAULT_RATE
from tokenflow_sgl.lab.sim.study.early_end import EarlyEnd, TooManyMissedError, allowed_misses
from tokenflow_sgl.lab.sim.study.spread import Spread
from tokenflow_sgl.lab.traces import Trace, transform
from tokenflow_sgl.lab.traces.repeat import period_s, repeat
from tokenflow_sgl.qos.classes import SHIPPED_CLASSES, QosClasses

SLOWEST, FASTEST = 2.0**-8, 2.0**8
"""Between these multiples of the trace's own arrivals the rate is sought."""
PRECISION = 1.03
"""Ratio of the lowest rate that fails and the highest that does not, where the search ends."""
NEIGHBOURS = (0.95, 0.9, 1.05, 1.1)
"""Multiples of the rate found that are tried, too."""
SAME = 0.01
"""Rates that differ by no more than this share count as one that was tried."""
MOST_RUNS = 40
"""Rates that are tried for one scheduler at most."""


@dataclass(frozen=True, slots=True)
class CapacitySetup:
    """What all runs of a search for capacity share.

    Attributes:
        traces: The requests, in one or several draws, whose streams are counted together.
        profile: The device.
        options: SGLang's settings.
        goal: That a stream has to meet.
        share: Of the streams that have to meet it, above 0, at most 1.
        known_lengths: Whether the server knows when each answer ends; see `simulate`.
        classes: Of the server.
        whole: Run rates to their end that are known to fail before, for the share that met the goal
            there. It takes many times as long and finds the same rate.
    """

    traces: tuple[Trace, ...]
    profile: DeviceProfile
    options: EngineOptions
    goal: Goal
    share: float
    known_lengths: bool = False
    classes: QosClasses = SHIPPED_CLASSES
    whole: bool = True

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise SimulationError(
                f"share is {self.share!r}; allowed is a number above 0 and at most 1"
            )
        for trace in self.traces:
            if not period_s(trace) > 0.0:
                raise SimulationError(
                    f"{trace.name} arrives all at once, so it has no rate; allowed is a trace "
                    "whose arrivals take time"
                )

    @property
    def shortest_s(self) -> float:
        """Seconds that the arrivals of a run take at least."""
        return min(period_s(trace) for trace in self.traces)

    @property
    def read_s(self) -> float:
        """Seconds that reading an answer takes, on average."""
        answers = [
            (request.output_tokens - request.reasoning_tokens) / (request.rate or DEFAULT_RATE)
            for trace in self.traces
            for request in trace.requests
        ]
        return sum(answers) / len(answers)

    @property
    def rate(self) -> float:
        """Streams per second of the traces as they are."""
        streams = sum(len(trace.requests) for trace in self.traces)
        return streams / sum(period_s(trace) for trace in self.traces)


@dataclass(frozen=True, slots=True)
class Tried:
    """What a scheduler made of one rate.

    Attributes:
        speed: Multiple of the trace's own arrivals.
        rate: Streams per second.
        share: Of the streams that met the goal.
        whole: The run came to its end; else `share` is of the streams that could still meet the
            goal when it was ended, because they were too few.
    """

    speed: float
    rate: float
    share: float
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Carried:
    """The highest rate that one scheduler carries, and all that were tried.

    Attributes:
        policy: Its name.
        best: The highest rate found; None: it met the goal at none.
        tried: All rates, ascending.
        monotone: Whether every rate below `best` met the goal and none above did.
        unbounded: `best` is the fastest that is tried: it carries that or more.
    """

    policy: str
    best: Tried | None
    tried: tuple[Tried, ...]
    monotone: bool
    unbounded: bool

    @property
    def rate(self) -> float:
        """Streams per second; 0: none."""
        return 0.0 if self.best is None else self.best.rate


Job = tuple[str, float, int]
"""One run: policy, speed, and which of the traces."""


class SearchedRun(NamedTuple):
    """How many streams of a run of the search met the goal.

    Attributes:
        met: Streams that met the goal, or that could still when the run was ended.
        streams: All of them.
        whole: The run came to its end.
    """

    met: int
    streams: int
    whole: bool = True


@dataclass(slots=True)
class SpeedSearch:
    """Bisection over one scheduler's speeds: what is known, and what to try next."""

    share: float
    shares: dict[float, float] = field(default_factory=dict)
    ended: set[float] = field(default_factory=set)
    """Speeds whose runs did not come to their end."""

    def bracket(self) -> tuple[float, float]:
        """The highest speed below all that fail (0: none), and the lowest that fails (or inf)."""
        low = 0.0
        for speed in sorted(self.shares):
            if self.shares[speed] < self.share:
                return low, speed
            low = speed
        return low, math.inf

    def steps(self) -> Generator[float, float, None]:
        """Yields each speed to try, and is sent the share of streams that met the goal."""
        while (speed := self._next()) is not None and len(self.shares) < MOST_RUNS:
            self.shares[speed] = yield speed

    def _next(self) -> float | None:
        low, high = self.bracket()
        if not self.shares:
            return 1.0
        if not low:
            return high / 2 if high > SLOWEST else None
        if math.isinf(high):
            return low * 2 if low < FASTEST else None
        if high > low * PRECISION:
            return math.sqrt(low * high)
        return next((low * near for near in NEIGHBOURS if self._is_new(low * near)), None)

    def _is_new(self, speed: float) -> bool:
        return not any(abs(tried / speed - 1.0) <= SAME for tried in self.shares)


def capacity(
    setup: CapacitySetup,
    policies: Sequence[str],
    *,
    spread: Spread,
    done: Callable[[str, float, float], None] | None = None,
) -> list[Carried]:
    """Search the highest rate of each scheduler, one rate of all of them at a time.

    Args:
        setup: What is the same for all runs.
        policies: Names as of `simulate`.
        spread: Where the runs are done.
        done: Told of each rate that was tried: the policy, and the streams per second that are met
            and that are not (inf: not known yet).
    """
    searches = {policy: SpeedSearch(setup.share) for policy in policies}
    steps = {policy: search.steps() for policy, search in searches.items()}
    asked = {policy: next(each) for policy, each in steps.items()}
    while asked:
        jobs: list[Job] = [
            (policy, speed, draw)
            for policy, speed in asked.items()
            for draw in range(len(setup.traces))
        ]
        met, streams = dict.fromkeys(asked, 0), dict.fromkeys(asked, 0)
        for (policy, speed, _), outcome in zip(jobs, spread(run_of, setup, jobs), strict=True):
            met[policy] += outcome.met
            streams[policy] += outcome.streams
            if not outcome.whole:
                searches[policy].ended.add(speed)
        for policy in [*asked]:
            try:
                asked[policy] = steps[policy].send(met[policy] / streams[policy])
            except StopIteration:
                del asked[policy]
            if done is not None:
                low, high = searches[policy].bracket()
                done(policy, low * setup.rate, high * setup.rate)
    return [_carried(setup, policy, search) for policy, search in searches.items()]


def run_of(setup: CapacitySetup, job: Job) -> SearchedRun:
    """How many streams of one run met the goal, and how many there were."""
    policy, speed, draw = job
    trace = at_speed(setup.traces[draw], speed)
    count = len(trace.requests)
    end = None
    if not setup.whole:
        # Those of the other draws are counted together with these, so any of them may meet it.
        others = [each for number, each in enumerate(setup.traces) if number != draw]
        streams = count + sum(len(at_speed(each, speed).requests) for each in others)
        end = EarlyEnd(setup.goal, allowed_misses(setup.share, streams))
    try:
        done = simulate(
            trace,
            setup.profile,
            setup.options,
            policy=policy,
            known_lengths=setup.known_lengths,
            classes=setup.classes,
            watch=end,
        )
    except TooManyMissedError as error:
        return SearchedRun(count - error.missed, count, whole=False)
    # Of all requests, not only of those that a run has reached.
    return SearchedRun(int(setup.goal.met(done.run).sum()), count)


def at_speed(trace: Trace, speed: float) -> Trace:
    """The trace so many times as fast, repeated where it would be over sooner."""
    if speed <= 1.0:
        return transform.speed_up(trace, speed)
    faster = transform.speed_up(repeat(trace, math.ceil(speed)), speed)
    return transform.window(faster, 0.0, trace.requests[0].arrival_s + period_s(trace))


def _carried(setup: CapacitySetup, policy: str, search: SpeedSearch) -> Carried:
    tried = tuple(
        Tried(speed, speed * setup.rate, search.shares[speed], speed not in search.ended)
        for speed in sorted(search.shares)
    )
    low, high = search.bracket()
    return Carried(
        policy,
        next((each for each in tried if each.speed == low), None),
        tried,
        monotone=not any(each.share >= setup.share for each in tried if each.speed >= high),
        unbounded=math.isinf(high),
    )
