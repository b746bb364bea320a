"""Several engines behind a router."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.choices import Router
from tokenflow_sgl.contract import State
from tokenflow_sgl.lab.sim.engine import Observe, SimulatedEngine
from tokenflow_sgl.lab.sim.engine_options import SimulationError
from tokenflow_sgl.lab.sim.policed import PolicedScheduler
from tokenflow_sgl.lab.sim.schedulers.fcfs import FcfsScheduler
from tokenflow_sgl.lab.sim.simulated_streams import IntArray, SimulatedStreams
from tokenflow_sgl.lab.traces.schedule import Due, Schedule
from tokenflow_sgl.metrics import METRICS
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.policy.headroom import headroom
from tokenflow_sgl.policy.routing import READ_EVERY, KnownHeadroom, newcomer_work

WINDOW = 0.1
"""Seconds that engines run apart while answers decide when later turns come."""


class RoutedRequests(Due):
    """Requests that the router has given to one engine."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self._schedule = schedule

    def succeeded(self, index: int, ended_s: float) -> None:
        """The next turn of its session goes through the router."""
        self._schedule.succeeded(index, ended_s)

    def failed(self, index: int, ended_s: float) -> list[int]:
        """The later turns of its session are not sent."""
        return self._schedule.failed(index, ended_s)


@dataclass(frozen=True, slots=True)
class Replica:
    """An engine with its inbox, as a router sees it."""

    engine: SimulatedEngine
    inbox: RoutedRequests
    scheduler: FcfsScheduler

    def present(self) -> IntArray:
        """Requests that it was given and has not finished."""
        there = [*self.inbox.all(), *self.scheduler.present()]
        return np.array(there, dtype=np.int64)

    def state(self, now: float) -> State:
        """What a policy sees of it.

        Raises:
            SimulationError: No policy of this package runs there, so no headroom is reported.
        """
        if not isinstance(self.scheduler, PolicedScheduler):
            gauge = METRICS["headroom_tokens"].full_name
            raise SimulationError(
                f"router is {Router.headroom.value!r}, which reads {gauge}: SGLang's own "
                "schedulers do not report it; allowed are policies that preempt, as tokenflow"
            )
        return self.scheduler.state(now)

    @property
    def idle(self) -> bool:
        """Nothing is left to do."""
        return self.engine.idle and not len(self.present())


Route = Callable[[Sequence[Replica], int, float], int]
"""Chooses the replica of a request, by its index, at a moment in seconds."""


def serve(
    schedule: Schedule,
    replicas: Sequence[Replica],
    route: Route,
    *,
    sessions: bool,
    observe: Observe | None = None,
) -> None:
    """Route every request when it is due, with all engines simulated up to that moment.

    sessions: Answers decide when later turns come; engines then run apart for `WINDOW` at most,
    and a turn that comes sooner than that after the answer may be served so much later.
    """
    while True:
        due = schedule.next_s
        until = math.inf if due is None else due
        if sessions:
            until = min(until, min(replica.engine.now for replica in replicas) + WINDOW)
        for replica in replicas:
            replica.engine.advance(until)
            if replica.idle and math.isfinite(until):
                replica.engine.now = max(replica.engine.now, until)
        if observe is not None:
            now = min(replica.engine.now for replica in replicas)
            observe(now, sum(replica.engine.finished for replica in replicas))
        for moment, index in schedule.pop(until):
            replicas[route(replicas, index, moment)].inbox.push(moment, index)
        if schedule.next_s is None and all(replica.idle for replica in replicas):
            return


class RoundRobin:
    """Routes requests to the replicas one after the other."""

    def __init__(self, streams: SimulatedStreams, config: WorkingSetConfig) -> None:
        self._last = -1

    def __call__(self, replicas: Sequence[Replica], index: int, now: float) -> int:
        """The replica after the last one."""
        self._last = (self._last + 1) % len(replicas)
        return self._last


class LeastLoaded:
    """The replica with the fewest tokens still to compute, prompts and answers.

    A router has seen the tokens that the server has sent, and not those of the step under way.
    """

    def __init__(self, streams: SimulatedStreams, config: WorkingSetConfig) -> None:
        self.streams = streams

    def __call__(self, replicas: Sequence[Replica], index: int, now: float) -> int:
        """The replica with the least left to do; the first one of equals."""
        return int(np.argmin([self.load(replica, index) for replica in replicas]))

    def load(self, replica: Replica, index: int) -> float:
        """Tokens that it has still to compute."""
        streams, there = self.streams, replica.present()
        generated = streams.known[there]
        prompts = streams.prompt[there][generated == 0]
        return float((streams.limit[there] - generated).sum() + prompts.sum())


class BufferAware(LeastLoaded):
    """The replica whose readers ask for the least work soon: a full buffer asks for nothing."""

    HORIZON = 30.0
    """Seconds ahead."""

    def load(self, replica: Replica, index: int) -> float:
        """Tokens asked for within the horizon, each times the context that it reads."""
        streams, there = self.streams, replica.present()
        generated = streams.known[there]
        slack = np.where(generated > 0, streams.due[there] - replica.engine.now, 0.0)
        asked = np.maximum(self.HORIZON - np.maximum(slack, 0.0), 0.0) * streams.rate[there]
        asked = np.minimum(asked, streams.limit[there] - generated)
        return float((asked * (streams.prompt[there] + generated + asked / 2)).sum())


class LMetric(LeastLoaded):
    """LMetric (OSDI'26, arXiv 2603.15202): tokens to prefill times the batch size, the least wins.

    The abstract names the two factors: "new prefill tokens if routed to an instance" and "current
    batch size of the instance". Assumed, for it does not say: prompts that wait at the instance
    count among the tokens to prefill, and requests that wait or are paused in the batch size.
    """

    def load(self, replica: Replica, index: int) -> float:
        """Prompt tokens that the replica would have to compute, times the requests there."""
        streams, there = self.streams, replica.present()
        waiting = there[streams.known[there] == 0]
        memory = replica.engine.core.memory
        to_prefill = sum(
            int(streams.prompt[each]) - memory.match(each)[1] for each in (*waiting.tolist(), index)
        )
        return float(to_prefill * len(there))


class Headroom:
    """The replica with the most headroom, as a router knows it that reads the gauge at times."""

    def __init__(self, streams: SimulatedStreams, config: WorkingSetConfig) -> None:
        self._streams = streams
        self._config = config
        self._read_s = -math.inf
        self._known = KnownHeadroom()

    def __call__(self, replicas: Sequence[Replica], index: int, now: float) -> int:
        """The replica with the most headroom by the last reading and what was sent since."""
        if now - self._read_s >= READ_EVERY:
            self._read_s = now
            for number, replica in enumerate(replicas):
                self._known.read(number, headroom(replica.state(now), self._config))
        streams = self._streams
        prompt, rate, limit = streams.prompt[index], streams.rate[index], streams.limit[index]
        best = self._known.choose(newcomer_work(float(prompt), float(rate), float(limit)))
        assert best is not None, "every replica reports its headroom"
        return best


ROUTERS: Mapping[str, Callable[[SimulatedStreams, WorkingSetConfig], Route]] = {
    Router.round_robin: RoundRobin,
    Router.least_loaded: LeastLoaded,
    Router.buffer_aware: BufferAware,
    Router.lmetric: LMetric,
    Router.headroom: Headroom,
}
"""Routers by name; made for a run's streams and the policy's parameters."""
