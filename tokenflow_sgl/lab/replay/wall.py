"""The replay of a trace on the wall clock: each request is sent when it is due."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable

import numpy as np

from tokenflow_sgl.lab.replay.base_replayer import BaseReplayer, p50_and_p99
from tokenflow_sgl.lab.replay.live import Observer, Snapshot
from tokenflow_sgl.lab.replay.probe import HttpProbe
from tokenflow_sgl.lab.replay.records import TraceClock
from tokenflow_sgl.lab.replay.stream import Stream
from tokenflow_sgl.qos import NOTICEABLE_STALL

_PREPARED_S = 1.0
"""Requests that are due within so many seconds are written before the clock starts."""
_TTFTS_SHOWN = 1000
_REFUSALS = 20
"""Connections refused in a row after which the server counts as gone."""


class WallReplayer(BaseReplayer):
    """One replay under way on the wall clock; times are those of `time.monotonic()`."""

    _timer: asyncio.TimerHandle | None = None
    _sent = 0
    _refusals = 0
    """Connections refused in a row so far."""

    # ---- phases ---------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the prompts that are due at once: hundreds take longer than one may be late."""
        self._bodies.prepare(_PREPARED_S)

    async def run(self, observe: Observer, stop: asyncio.Event) -> bool:
        """Send requests when they are due until all have ended; return whether it was stopped."""
        self._client.tokens, self._client.ttft_s = 0, array("d")  # the burst does not count
        zero = time.monotonic()
        self.clock = TraceClock(zero, self._target.time_scale)
        self._shown = (zero, 0)
        self._send_due()
        probe = HttpProbe(self._target)
        self.server_lag_s = probe.lag_s
        interrupted = await self._until_over(stop, self._watch(observe, zero), probe.run())
        self._stop()
        await self._client.close()
        self.ended = time.monotonic()
        observe(self._snapshot(), self.ended - zero)
        return interrupted

    def _stop(self) -> None:
        """Send no more requests, whatever answers end from now on."""
        self._over.set()
        if self._timer is not None:
            self._timer.cancel()

    # ---- sending --------------------------------------------------------------------

    def _send_burst(
        self, number: int, of: int, rate: float, on_end: Callable[[Stream], None]
    ) -> None:
        self._post(self._bodies.burst(number), rate, keep=False, on_end=on_end)

    def _send_due(self) -> None:
        """Send the requests that are due; return when the next one is due."""
        if self._timer is not None:
            self._timer.cancel()
        for due_s, index in self._schedule.pop(self.clock.trace_s(time.monotonic())):
            self._send(index, due_s)
        if self._schedule.next_s is not None:
            delay = self.clock.wall_s(self._schedule.next_s) - time.monotonic()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, delay), self._send_due)
        elif not self._client.running:
            self._stop()

    def _send(self, index: int, due_s: float) -> None:
        record = self._records[index]
        keep = self._bodies.keeps(index)
        body = self._bodies.take(index)
        record.scheduled_s = due_s
        if self._options.concurrency is not None and due_s < self._options.warm_up_s:
            record.warm_up = True
        record.stream = self._post(
            body, record.rate, keep, lambda stream: self._ended(index, stream)
        )
        self._sent += 1
        self.send_lag_s.append(record.stream.sent - self.clock.wall_s(due_s))

    def _post(
        self, body: bytes, rate: float, keep: bool, on_end: Callable[[Stream], None]
    ) -> Stream:
        return self._client.send(
            self._endpoint.path,
            body,
            self._endpoint.answer(keep=keep),
            rate=rate / self._target.time_scale,
            on_end=on_end,
        )

    def _ended(self, index: int, stream: Stream) -> None:
        if self._answered is not None:
            self._answered(index, stream.answer)
        assert stream.ended is not None, "told of an end"
        ended_s = self.clock.trace_s(stream.ended)
        if stream.error is None:
            self._finished += 1
            self._schedule.succeeded(index, ended_s)
        else:
            self._fail(index, ended_s)
        self._refusals = self._refusals + 1 if stream.refused else 0
        if self._over.is_set():
            return
        if self._refusals >= _REFUSALS:
            self.gone = (
                f"The server was gone: {self._refusals} connections in a row failed, the last one "
                f"with: {stream.error}. Requests that were due later were not sent. Next: look for "
                "the reason in its log, start it again, and replay again."
            )
            self._stop()
        else:
            self._send_due()

    # ---- watching -------------------------------------------------------------------

    def _snapshot(self) -> Snapshot:
        now = time.monotonic()
        p50, p99 = p50_and_p99(np.array(self._client.ttft_s[-_TTFTS_SHOWN:]) / self.clock.scale)
        return Snapshot(
            time_s=self.clock.trace_s(now),
            total=len(self._records),
            sent=self._sent,
            finished=self._finished,
            failed=self._failed,
            running=len(self._client.running),
            waiting=self._client.waiting(),
            tokens_per_s=self._tokens_per_s(now),
            ttft_p50_s=p50,
            ttft_p99_s=p99,
            stalled=self._client.stalled(NOTICEABLE_STALL * self.clock.scale),
            uncounted=self._client.uncounted(),
        )
