"""The loop: one step after the other, in virtual time.

SGLang plans a step while the one before it runs. So a request that comes during a step is first
seen when the next one has started, and what that decides runs after it. Decode steps that nothing
can interrupt are taken together: that is what makes an hour of a server a matter of seconds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from tokenflow_sgl.lab.sim.core import SimulatedCore
from tokenflow_sgl.lab.sim.simulated_run import SimulatedTokens
from tokenflow_sgl.lab.sim.simulated_streams import FloatArray, IntArray
from tokenflow_sgl.lab.sim.step import Step
from tokenflow_sgl.lab.sim.step_results import StepResults

MOST_AT_ONCE = 512
"""Decode steps taken together at most: their times fit a cache."""

SHORTEST_SLEEP = 0.001
"""Seconds after which a policy that ran nothing is asked again."""

OBSERVED = 32
"""Turns of the loop between two looks at the progress."""

Observe = Callable[[float, int], None]
"""Is told the virtual time and how many requests have ended, now and then."""


class Scheduler(Protocol):
    """Plans the steps; see `FcfsScheduler`."""

    def plan(self, now: float) -> Step | None:
        """The next step; None: there is nothing to run."""
        ...

    def idled(self) -> None:
        """Nothing runs and nothing was planned."""
        ...

    def wakes_at(self, now: float) -> float:
        """When the plan may change though nothing comes or goes; infinite: never."""
        ...

    @property
    def steady(self) -> bool:
        """Whether decode steps follow each other until something comes or goes."""
        ...

    def decoded(self, steps: int) -> None:
        """Note that decode steps were run without a retraction."""
        ...

    def ran(
        self, step: Step, starts: FloatArray, end: float, context: int, made: IntArray | None = None
    ) -> None:
        """A step was run, once or several times, with `context` tokens read in the first.

        made: tokens that each run gave its decoding rows, shape (runs, rows); None: one each.
        """
        ...

    def refuses(self, stream: int, now: float) -> str | None:
        """Why a request that comes now is turned away; None: it is about to arrive."""
        ...

    def ended(self, streams: list[int]) -> None:
        """Note that these streams are known to have got their last token."""
        ...


class Inbox(Protocol):
    """Where requests come from, and where it is told that one has ended."""

    @property
    def next_s(self) -> float | None:
        """When the next request is due; None: none is known."""
        ...

    def pop(self, now_s: float) -> list[tuple[float, int]]:
        """Take the requests that are due by now: when each was due, and its index."""
        ...

    def succeeded(self, index: int, ended_s: float) -> None:
        """Note that a request has ended, which its session's next turn waits for."""
        ...

    def failed(self, index: int, ended_s: float) -> list[int]:
        """Note that a request was refused; returns the turns that are not sent because of it."""
        ...


class SimulatedEngine:
    """One engine that serves requests.

    Attributes:
        core: Its state.
        ended: When each request ended; NaN: it has not. Engines of a cluster share it.
        finished: Requests that have ended here.
        steps: Forward passes so far.
        now: Virtual time, seconds on the trace's clock.
        kv_peak: Most tokens of KV that running streams held, and those being prefilled.
        host_peak: Most tokens of KV that the host had copies of.
    """

    def __init__(
        self,
        core: SimulatedCore,
        scheduler: Scheduler,
        inbox: Inbox,
        tokens: SimulatedTokens,
        ended: FloatArray,
    ) -> None:
        self.core = core
        self.ended = ended
        self.finished = 0
        self.steps = 0
        self.now = 0.0
        self.kv_peak = self.host_peak = 0
        self._scheduler = scheduler
        self._inbox = inbox
        self._tokens = tokens
        self._started: float | None = None  # the step that runs; None: the engine idles
        self._results = StepResults(core.streams)

    @property
    def idle(self) -> bool:
        """Whether no step runs."""
        return self._started is None

    def advance(self, until: float = math.inf, observe: Observe | None = None) -> None:
        """Serve until then, or until nothing is left to do. The last step may end later."""
        core = self.core
        for turn in itertools.count():
            if self.now >= until:
                return
            if observe is not None and turn % OBSERVED == 0:
                observe(self.now, self.finished)
            idle = self.idle
            started = self._started if core.options.overlap else None
            planned = self.now if started is None else started
            core.busy_until = self.now
            self._results.arrive(planned)
            for due, stream in self._inbox.pop(planned):
                why = self._scheduler.refuses(stream, due)
                if why is None:
                    core.arrive(stream, due, planned)
                else:
                    self._refuse(stream, due, why)
            known = core.forget(planned, at_once=idle or not core.options.overlap)
            self._scheduler.ended(known)
            core.memory.settle(planned)
            step = self._scheduler.plan(planned)
            if step is not None:
                self._started = self._execute(step, until)
            elif not idle:
                self._started = None  # the present step ends; plan again with all that is known
            elif not self._sleep(until):
                return

    def _refuse(self, stream: int, now: float, why: str) -> None:
        """A request is turned away, and with it the later turns of its session."""
        self.core.streams.refuse(stream, now, why)
        self.ended[stream] = now
        dropped = self._inbox.failed(stream, now)
        self.finished += 1 + len(dropped)

    def _sleep(self, until: float) -> bool:
        """Nothing to run: on to what comes next. False: nothing does before `until`."""
        self._scheduler.idled()
        times = [self._inbox.next_s, self.core.memory.settles_at()]
        later = [time for time in times if time is not None]
        later.append(max(self._scheduler.wakes_at(self.now), self.now + SHORTEST_SLEEP))
        moment = min(later)
        if math.isinf(moment) or moment >= until:
            return False
        self.now = max(moment, self.now)
        return True

    def _execute(self, step: Step, until: float) -> float:
        """Run a step, or many like it; returns the start of the last one."""
        core, scheduler = self.core, self._scheduler
        rows, computed = step.decode, step.rows
        # Read with the token that each row computes.
        context = int(core.length(computed).sum()) + len(computed) if len(computed) else 0
        made = None
        if step.chunks:
            core.allocate(core.growth(rows, 1) + core.prefilled(step.chunks), self.now)
            self.now = max(self.now, core.room_at)
            ends = np.array([core.device.prefill_end(step, self.now, context)])
        else:
            ends, made = self._decode_ends(step, context, until)
            core.grow(rows, len(ends) if made is None else made.sum(axis=0), self.now)
            waited = max(core.room_at - self.now, 0.0)
            self.now += waited
            ends += waited
            scheduler.decoded(len(ends))
        self.kv_peak = max(self.kv_peak, core.memory.held)
        self.host_peak = max(self.host_peak, core.memory.host.used)
        starts = np.empty_like(ends)
        starts[0], starts[1:] = self.now, ends[:-1]
        end = float(ends[-1])
        scheduler.ran(step, starts, end, context, made)
        self._deliver(rows, ends, made)
        first = [chunk.stream for chunk in step.chunks if chunk.last]
        if first:
            self._deliver(np.array(first, dtype=np.int64), ends)
        over = core.advance(step, end)
        for stream in over:
            self.ended[stream] = end
            self.finished += 1
            self._inbox.succeeded(stream, end)
        self.steps += len(ends)
        self.now = end
        return float(starts[-1])

    def _deliver(self, rows: IntArray, times: FloatArray, made: IntArray | None = None) -> None:
        """Each row gets a token at each time; or `made` of them, shape (times, rows)."""
        if not len(rows):
            return
        if made is None:
            self._results.add(rows, times)
            self._tokens.deliver(rows, times)
            return
        for time, counts in zip(times.tolist(), made, strict=True):
            for count in np.unique(counts).tolist():
                self._deliver(rows[counts == count], np.full(count, time))

    def _decode_ends(
        self, step: Step, context: int, until: float
    ) -> tuple[FloatArray, IntArray | None]:
        """Ends of the decode steps that can be taken together, one at least, and their tokens.

        The tokens are of each row, shape (steps, rows); None: one each.
        """
        core = self.core
        rows = step.decode
        answer, generated = core.streams.answer[rows], core.streams.generated[rows]
        made: IntArray | None = None
        most = 1
        if not core.unsettled and self._scheduler.steady:
            most = max(min(core.steps_that_fit(rows), MOST_AT_ONCE), 1)
            if core.acceptance is None:
                most = min(most, int((answer - generated).min()))
        grown = (most - 1) * len(rows)
        if core.acceptance is not None:
            made = core.acceptance.steps(rows, generated, answer, most)
            most, grown = len(made), int(made[:-1].sum())
        seconds = core.device.decode_seconds(len(step.rows), context, most, grown)
        ends = self.now + seconds.cumsum()
        moment = min(self._scheduler.wakes_at(self.now), until)
        arrival = self._inbox.next_s
        if arrival is not None:
            moment = min(moment, arrival)
        # What comes during a step is seen at its end, when the next one is planned already.
        late = 2 if core.options.overlap else 1
        seen = int(ends.searchsorted(moment, side="left")) + late if moment > self.now else 1
        taken = max(min(most, seen), 1)
        return ends[:taken], None if made is None else made[:taken]
