"""Several engines behind a router."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.choices import Router
from tokenflow_sgl.sim.engine import Engine, Observe
from tokenflow_sgl.sim.schedulers.fcfs import FcfsScheduler
from tokenflow_sgl.sim.simulated_streams import IntArray, SimulatedStreams
from tokenflow_sgl.traces.schedule import Due, Schedule

WINDOW = 0.1
"""Seconds that engines run apart while answers decide when later turns come."""


class Inbox(Due):
    """Requests that the router has given to one engine."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self._schedule = schedule

    def succeeded(self, index: int, ended_s: float) -> None:
        """The next turn of its session goes through the router."""
        self._schedule.succeeded(index, ended_s)


@dataclass(frozen=True, slots=True)
class Replica:
    """An engine with its inbox, as a router sees it."""

    engine: Engine
    inbox: Inbox
    scheduler: FcfsScheduler

    def present(self) -> IntArray:
        """Requests that it was given and has not finished."""
        there = [*self.inbox.all(), *self.scheduler.present()]
        return np.array(there, dtype=np.int64)

    @property
    def idle(self) -> bool:
        """Nothing is left to do."""
        return self.engine.idle and not len(self.present())


Route = Callable[[Sequence[Replica]], int]
"""Chooses the replica of the next request."""


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
            replicas[route(replicas)].inbox.push(moment, index)
        if schedule.next_s is None and all(replica.idle for replica in replicas):
            return


class RoundRobin:
    """One after the other."""

    def __init__(self, streams: SimulatedStreams) -> None:
        self._last = -1

    def __call__(self, replicas: Sequence[Replica]) -> int:
        """The replica after the last one."""
        self._last = (self._last + 1) % len(replicas)
        return self._last


class LeastLoaded:
    """The replica with the fewest tokens still to compute, prompts and answers."""

    def __init__(self, streams: SimulatedStreams) -> None:
        self.streams = streams

    def __call__(self, replicas: Sequence[Replica]) -> int:
        """By what is left; the first one of equals."""
        return int(np.argmin([self.load(replica) for replica in replicas]))

    def load(self, replica: Replica) -> float:
        """Tokens that it has still to compute."""
        streams, there = self.streams, replica.present()
        generated = streams.generated[there]
        prompts = streams.prompt[there][generated == 0]
        return float((streams.limit[there] - generated).sum() + prompts.sum())


class BufferAware(LeastLoaded):
    """The replica whose readers ask for the least work soon: a full buffer asks for nothing."""

    HORIZON = 30.0
    """Seconds ahead."""

    def load(self, replica: Replica) -> float:
        """Tokens asked for within the horizon, each times the context that it reads."""
        streams, there = self.streams, replica.present()
        generated = streams.generated[there]
        started = generated > 0
        slack = np.where(started, streams.due[there] - replica.engine.now, 0.0)
        asked = np.maximum(self.HORIZON - np.maximum(slack, 0.0), 0.0) * streams.rate[there]
        asked = np.minimum(asked, streams.limit[there] - generated)
        return float((asked * (streams.prompt[there] + generated + asked / 2)).sum())


ROUTERS: Mapping[str, Callable[[SimulatedStreams], Route]] = {
    Router.round_robin: RoundRobin,
    Router.least_loaded: LeastLoaded,
    Router.buffer_aware: BufferAware,
}
"""Routers by name."""
