"""One replay under way: what is the same on the wall clock and on a server's virtual one."""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tokenflow_sgl.lab.replay.bodies import Bodies
from tokenflow_sgl.lab.replay.live import Observer, Snapshot
from tokenflow_sgl.lab.replay.records import TraceClock
from tokenflow_sgl.lab.replay.replay_options import StoppedReplayError, TargetError
from tokenflow_sgl.lab.replay.replay_parts import ReplayParts
from tokenflow_sgl.lab.replay.stream import Stream
from tokenflow_sgl.lab.traces.schedule import ClosedLoop, Schedule

_OBSERVE_EVERY_S = 0.5


class BaseReplayer(ABC):
    """One replay of a trace while it runs, on whichever clock.

    Attributes:
        clock: The trace's clock.
        ended: When it was over, on the clock whose zero `clock` has.
        send_lag_s: How late each request was sent, wall-clock seconds.
        server_lag_s: How long the server's HTTP process took to answer small questions, wall-clock
            seconds.
        gone: A sentence if the server stopped answering, else None.

    Args:
        parts: Requests, server, and what goes between them.
    """

    def __init__(self, parts: ReplayParts) -> None:
        target, options, records = parts.target, parts.options, parts.records
        self.clock = TraceClock(0.0, target.time_scale)
        self.ended = 0.0
        self.send_lag_s, self.server_lag_s = array("d"), array("d")
        self.gone: str | None = None
        self._target, self._options, self._endpoint = target, options, parts.endpoint
        self._records, self._client, self._answered = records, parts.client, parts.answered
        requests, places = parts.trace.requests, options.concurrency
        if places is None:
            self._schedule = Schedule(requests, options.sessions)
        else:
            self._schedule = ClosedLoop(requests, options.sessions, places)
        previous = self._schedule.previous
        for later in previous if places is None else range(len(records)):
            records[later].scheduled_s = math.nan  # the answer before it decides
        for index, record in enumerate(records):
            first = index
            while first in previous:  # not when it is due, which depends on the server
                first = previous[first]
            # In a closed loop the moment of sending decides.
            early = places is None and records[first].request.arrival_s < options.warm_up_s
            record.warm_up = index < options.warm_up_requests or early
        self._bodies = Bodies(parts, self._schedule)
        self._over = asyncio.Event()
        self._finished = self._failed = 0
        self._shown = (0.0, 0)

    async def burst(self, stop: asyncio.Event) -> None:
        """Send the warm-up burst, all at once, and wait for its answers.

        Raises:
            TargetError: One failed, or brought nothing for as long as the options allow.
            StoppedReplayError: It was stopped.
        """
        ended: asyncio.Queue[Stream] = asyncio.Queue()
        burst = self._records[: self._options.warm_up_burst]
        for number, record in enumerate(burst):
            self._send_burst(number, len(burst), record.rate, ended.put_nowait)
        left = len(burst)
        while left:
            if stop.is_set():
                raise StoppedReplayError("stopped in the warm-up burst: nothing was measured")
            self._give_up_silent()
            try:
                stream = await asyncio.wait_for(ended.get(), _OBSERVE_EVERY_S)
            except TimeoutError:
                continue  # look again at the stop and at silent streams
            left -= 1
            if stream.error is not None:
                raise TargetError(f"the warm-up burst failed: {stream.error}")

    @abstractmethod
    def prepare(self) -> None:
        """Write requests before the clock starts."""

    @abstractmethod
    async def run(self, observe: Observer, stop: asyncio.Event) -> bool:
        """Send all requests until all have ended; return whether it was stopped before."""

    @abstractmethod
    def _send_burst(
        self, number: int, of: int, rate: float, on_end: Callable[[Stream], None]
    ) -> None:
        """Send one request of the warm-up burst."""

    @abstractmethod
    def _snapshot(self) -> Snapshot:
        """How far it has come."""

    def _fail(self, index: int, ended_s: float) -> None:
        """A request failed then: the later turns of its session will not be sent."""
        failed = self._records[index].request
        later = self._schedule.failed(index, ended_s)
        self._failed += 1 + len(later)
        for turn in later:
            self._records[
                turn
            ].not_sent = f"not sent: turn {failed.turn} of session {failed.session} failed"

    async def _until_over(self, stop: asyncio.Event, *beside: Coroutine[None, None, None]) -> bool:
        """Run other coroutines until all requests have ended; return whether it was stopped."""
        tasks = [asyncio.create_task(each) for each in beside]
        ends = [asyncio.create_task(event.wait()) for event in (self._over, stop)]
        waiting: set[asyncio.Task[Any]] = {*tasks, *ends}
        try:
            while not any(end.done() for end in ends):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()  # raises what one of the others has raised
        finally:
            for task in (*tasks, *ends):
                task.cancel()
        return not self._over.is_set()

    async def _watch(self, observe: Observer, began: float) -> None:
        """Show how far it has come, and give up streams that have been silent for too long."""
        while True:
            observe(self._snapshot(), time.monotonic() - began)
            await asyncio.sleep(_OBSERVE_EVERY_S)
            self._give_up_silent()

    def _give_up_silent(self) -> None:
        self._client.give_up_silent(self._options.timeout_s * self._target.time_scale)

    def _tokens_per_s(self, now: float) -> float:
        """Tokens per second of the trace since this was asked before."""
        since, before = self._shown
        self._shown = (now, self._client.tokens)
        elapsed = (now - since) / self.clock.scale
        return (self._client.tokens - before) / elapsed if elapsed > 0 else 0.0


def p50_and_p99(ttft_s: ArrayLike) -> tuple[float, float]:
    """The two percentiles; NaN if there is no first token yet."""
    if not np.size(ttft_s):
        return math.nan, math.nan
    p50, p99 = np.percentile(np.asarray(ttft_s), (50, 99))
    return float(p50), float(p99)
