"""The replay of a trace on the wall clock: each request is sent when it is due."""

from __future__ import annotations

import asyncio
import math
import time
from array import array
from collections.abc import Callable

import numpy as np

from tokenflow_sgl.qos import NOTICEABLE_STALL
from tokenflow_sgl.replay.answers import Answer
from tokenflow_sgl.replay.bodies import Bodies
from tokenflow_sgl.replay.endpoints import Endpoint
from tokenflow_sgl.replay.live import Observer, Snapshot
from tokenflow_sgl.replay.probe import HttpProbe
from tokenflow_sgl.replay.prompts import Prompts
from tokenflow_sgl.replay.records import Record, TraceClock
from tokenflow_sgl.replay.replay_options import ReplayOptions, TargetError
from tokenflow_sgl.replay.stream import Stream
from tokenflow_sgl.replay.stream_client import StreamClient
from tokenflow_sgl.replay.target import Target
from tokenflow_sgl.traces.request import Trace
from tokenflow_sgl.traces.schedule import Schedule

_PREPARED_S = 1.0
"""Requests that are due within so many seconds are written before the clock starts."""
_OBSERVE_EVERY_S = 0.5
_TTFTS_SHOWN = 1000
_REFUSALS = 20
"""Connections refused in a row after which the server counts as gone."""


class WallReplayer:
    """One replay under way on the wall clock; `virtual` has its counterpart.

    Attributes:
        clock: The trace's clock.
        ended: When it was over, `time.monotonic()`.
        send_lag_s: How late each request was sent, wall-clock seconds.
        gone: A sentence if the server stopped answering, else None.
        server_lag_s: How long the server's HTTP process took to answer small questions, wall-clock
            seconds; emulated devices only.
    """

    def __init__(
        self,
        trace: Trace,
        target: Target,
        options: ReplayOptions,
        records: list[Record],
        prompts: Prompts,
        client: StreamClient,
        endpoint: Endpoint,
        answered: Callable[[int, Answer], None] | None,
    ) -> None:
        self.clock = TraceClock(0.0, target.time_scale)
        self.ended = 0.0
        self.send_lag_s = array("d")
        self.gone: str | None = None
        self._probe = HttpProbe(target)
        self.server_lag_s = self._probe.lag_s
        self._target, self._options, self._records = target, options, records
        self._client, self._endpoint, self._answered = client, endpoint, answered
        self._schedule = Schedule(trace.requests, options.sessions)
        self._bodies = Bodies(
            target,
            options,
            endpoint,
            prompts,
            records,
            self._schedule,
            keep_all=answered is not None,
        )
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._sent = self._finished = self._failed = self._refusals = 0
        self._shown = (0.0, 0)

    # ---- phases ---------------------------------------------------------------------

    async def burst(self) -> None:
        """Send the warm-up burst, all at once, and wait for its answers.

        Raises:
            TargetError: One failed.
        """
        ended: asyncio.Queue[Stream] = asyncio.Queue()
        burst = self._records[: self._options.warm_up_burst]
        for number, record in enumerate(burst):
            body = self._bodies.burst(number)
            self._post(body, record.rate, keep=False, on_end=ended.put_nowait)
        for _ in burst:
            stream = await ended.get()
            if stream.error is not None:
                raise TargetError(f"the warm-up burst failed: {stream.error}")

    def prepare(self) -> None:
        """Make the prompts that are due at once: hundreds take longer than one may be late."""
        self._bodies.prepare(_PREPARED_S)

    async def run(self, observe: Observer, stop: asyncio.Event) -> bool:
        """Send requests when they are due until all have ended; return whether it was stopped."""
        self._client.tokens, self._client.ttft_s = 0, array("d")  # the burst does not count
        zero = time.monotonic()
        self.clock = TraceClock(zero, self._target.time_scale)
        self._shown = (zero, 0)
        watch = self._loop.create_task(self._watch(observe, zero))
        probing = self._loop.create_task(self._probe.run())
        ends = {self._loop.create_task(event.wait()) for event in (self._over, stop)}
        self._send_due()
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (watch, probing, *ends):
                task.cancel()
        interrupted = not self._over.is_set()
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

    def _send_due(self) -> None:
        """Send the requests that are due; return when the next one is due."""
        if self._timer is not None:
            self._timer.cancel()
        for due_s, index in self._schedule.pop(self.clock.trace_s(time.monotonic())):
            self._send(index, due_s)
        if self._schedule.next_s is not None:
            delay = self.clock.wall_s(self._schedule.next_s) - time.monotonic()
            self._timer = self._loop.call_later(max(0.0, delay), self._send_due)
        elif not self._client.running:
            self._stop()

    def _send(self, index: int, due_s: float) -> None:
        record, options = self._records[index], self._options
        keep = self._bodies.keeps(index)
        body = self._bodies.take(index)
        record.scheduled_s = due_s
        record.warm_up = index < options.warm_up_requests or due_s < options.warm_up_s
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
        if stream.error is None and stream.ended is not None:
            self._finished += 1
            self._schedule.succeeded(index, self.clock.trace_s(stream.ended))
        else:
            self._fail(index)
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

    def _fail(self, index: int) -> None:
        failed = self._records[index].request
        later = self._schedule.failed(index)
        self._failed += 1 + len(later)
        for turn in later:
            self._records[
                turn
            ].not_sent = f"not sent: turn {failed.turn} of session {failed.session} failed"

    # ---- watching -------------------------------------------------------------------

    async def _watch(self, observe: Observer, zero: float) -> None:
        timeout_s = self._options.timeout_s * self._target.time_scale
        while True:
            observe(self._snapshot(), time.monotonic() - zero)
            await asyncio.sleep(_OBSERVE_EVERY_S)
            self._client.give_up_silent(timeout_s)

    def _snapshot(self) -> Snapshot:
        now, tokens = time.monotonic(), self._client.tokens
        since, before = self._shown
        self._shown = (now, tokens)
        elapsed = (now - since) / self.clock.scale
        ttft_s = np.array(self._client.ttft_s[-_TTFTS_SHOWN:]) / self.clock.scale
        p50, p99 = np.percentile(ttft_s, (50, 99)) if ttft_s.size else (math.nan, math.nan)
        return Snapshot(
            time_s=self.clock.trace_s(now),
            total=len(self._records),
            sent=self._sent,
            finished=self._finished,
            failed=self._failed,
            running=len(self._client.running),
            waiting=self._client.waiting(),
            tokens_per_s=(tokens - before) / elapsed if elapsed > 0 else 0.0,
            ttft_p50_s=float(p50),
            ttft_p99_s=float(p99),
            stalled=self._client.stalled(NOTICEABLE_STALL * self.clock.scale),
        )
