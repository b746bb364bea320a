"""The replay against a server on a virtual clock: `serve-emulated --virtual-time`.

Such a server's time does not pass with the client's, so nothing can be sent when it is due. All
requests are sent at once, each with its arrival, and every token comes back with the server's own
stamp. So neither machine's speed shows in a run, and the same replay gives the same run again.
Times are virtual seconds after the start of the trace.
"""

from __future__ import annotations

import asyncio
import math
import time
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

from tokenflow_sgl.choices import Api
from tokenflow_sgl.lab.replay.answers import GenerateAnswer
from tokenflow_sgl.lab.replay.base_replayer import BaseReplayer, p50_and_p99
from tokenflow_sgl.lab.replay.live import Observer, Snapshot
from tokenflow_sgl.lab.replay.records import Record, TraceClock
from tokenflow_sgl.lab.replay.replay_options import ReplayError
from tokenflow_sgl.lab.replay.replay_parts import ReplayParts
from tokenflow_sgl.lab.replay.stream import Stream
from tokenflow_sgl.qos import NOTICEABLE_STALL

STAMP_KEY = "emulated_s"
"""Where an answer's `meta_info` has the times of its tokens."""


class ServerTime:
    """The server's clock, as far as its stamps tell: the latest one."""

    def __init__(self) -> None:
        self.now_s = 0.0


class StampedAnswer(GenerateAnswer):
    """An answer whose tokens carry the server's time.

    Attributes:
        due_s: When its request arrived.
        times: When each token came.
        next_due: When its reader runs dry if nothing more comes (`qos.reader` has the formula).

    Args:
        clock: Moves with every stamp.
        due_s: When its request arrives.
        rate: Tokens per second that the reader consumes.
    """

    __slots__ = ("_clock", "_rate", "due_s", "next_due", "times")

    def __init__(self, clock: ServerTime, due_s: float, rate: float) -> None:
        super().__init__(keep=True)
        self.due_s = due_s
        self.times = array("d")
        self.next_due = 0.0
        self._clock, self._rate = clock, rate

    def _take(self, fields: dict[str, Any]) -> int:
        new = super()._take(fields)
        if new:
            stamps = fields["meta_info"][STAMP_KEY][-new:]
            if len(stamps) < new:
                raise ValueError(f"{new} tokens with {len(stamps)} stamps")
            for stamp in stamps:
                self.times.append(stamp)
                self.next_due = max(self.next_due, stamp) + 1 / self._rate
            self._clock.now_s = max(self._clock.now_s, stamps[-1])
        return new

    def waits(self, now_s: float) -> bool:
        """Whether its reader has asked by then, and has not got anything."""
        return not self.times and self.due_s <= now_s

    def stalled(self, now_s: float) -> bool:
        """Whether its reader has read all that came, and has waited noticeably for more."""
        return bool(self.times) and self.next_due < now_s - NOTICEABLE_STALL


class VirtualReplayer(BaseReplayer):
    """One replay under way; no lag counts, and a server that goes away fails every request.

    Raises:
        ReplayError: Another endpoint than `/generate`, or a closed loop, which such a server cannot
            serve.
    """

    def __init__(self, parts: ReplayParts) -> None:
        if parts.options.api is not Api.generate:
            raise ReplayError(
                f"{parts.target.url} is on a virtual clock, which only --api generate knows; "
                f"got {parts.options.api.value}"
            )
        if parts.options.concurrency is not None:
            raise ReplayError(
                f"{parts.target.url} is on a virtual clock, where the moment of every first turn "
                f"must be known before; got concurrency {parts.options.concurrency}. Give rates "
                "(--rate-sweep), or a server with --time-dilation"
            )
        super().__init__(parts)
        self.clock = TraceClock(0.0, 1.0)  # stamps are on it already
        self._time = ServerTime()
        self._streams: dict[Stream, StampedAnswer] = {}
        self._written: dict[int, bytes] = {}
        previous = self._schedule.previous
        self._later_turns = [0] * len(parts.records)
        for index in previous:
            before = previous.get(index)
            while before is not None:
                self._later_turns[before] += 1
                before = previous.get(before)

    def _give_up_silent(self) -> None:
        """Only when no stream gets anything: one may wait for long on a machine that is slow."""
        newest = max((stream.last_token for stream in self._client.running), default=math.inf)
        if time.monotonic() - newest > self._options.timeout_s:
            super()._give_up_silent()

    def _send_burst(
        self, number: int, of: int, rate: float, on_end: Callable[[Stream], None]
    ) -> None:
        body = self._bodies.burst(number, _arrival(0.0, number, of))
        self._send(body, 0.0, rate, ServerTime(), on_end)

    def prepare(self) -> None:
        """Write all requests but those that follow an answer."""
        self._written = {
            index: self._bodies.take(index, self._arrival(index, self._records[index].scheduled_s))
            for index in self._schedule.due_by(math.inf)
        }

    async def run(self, observe: Observer, stop: asyncio.Event) -> bool:
        """Send everything, and wait for the answers; return whether it was stopped before."""
        self._client.tokens = 0  # the burst does not count
        began = time.monotonic()
        self._send_due()
        interrupted = await self._until_over(stop, self._watch(observe, began))
        self._over.set()  # no more turns, whatever answers end from now on
        await self._client.close()
        self.ended = self._time.now_s
        for record in self._records:
            self._put_on_server_time(record)
        observe(self._snapshot(), time.monotonic() - began)
        return interrupted

    def _send_due(self) -> None:
        """Send all whose moment is known, whenever it is."""
        for due_s, index in self._schedule.pop(math.inf):
            record = self._records[index]
            record.scheduled_s = due_s
            body = self._written.pop(index, None)
            if body is None:
                body = self._bodies.take(index, self._arrival(index, due_s))
            stream, answer = self._send(
                body, due_s, record.rate, self._time, partial(self._end, index)
            )
            record.stream, self._streams[stream] = stream, answer

    def _arrival(self, index: int, due_s: float) -> dict[str, float]:
        arrival = _arrival(due_s, index, len(self._records))
        if self._later_turns[index]:
            arrival["later_turns"] = self._later_turns[index]
        if index in self._schedule.previous:
            arrival["after"] = self._schedule.previous[index]
        return arrival

    def _send(
        self,
        body: bytes,
        due_s: float,
        rate: float,
        clock: ServerTime,
        on_end: Callable[[Stream], None],
    ) -> tuple[Stream, StampedAnswer]:
        answer = StampedAnswer(clock, due_s, rate)
        path = self._endpoint.path
        return self._client.send(path, body, answer, rate=rate, on_end=on_end), answer

    def _end(self, index: int, stream: Stream) -> None:
        if self._answered is not None:
            self._answered(index, stream.answer)
        if stream.error is None:
            self._finished += 1
            answer = self._streams[stream]
            self._schedule.succeeded(index, answer.times[-1] if answer.times else answer.due_s)
        else:
            self._fail(index, self._time.now_s)
        if not self._over.is_set():
            self._send_due()
        if self._finished + self._failed == len(self._records):
            self._over.set()

    def _put_on_server_time(self, record: Record) -> None:
        """Replace the stamps of this machine's clock, once no more come."""
        stream = record.stream
        if stream is None:
            return  # its turn never came
        answer = self._streams[stream]
        if stream.cut_off and answer.due_s > self.ended:
            record.stream = None  # it never arrived
            return
        stream.sent, stream.times = answer.due_s, answer.times
        if stream.ended is not None:
            stream.ended = answer.times[-1] if answer.times else max(self.ended, answer.due_s)

    def _snapshot(self) -> Snapshot:
        now = self._time.now_s
        answers = self._streams.values()
        running = [self._streams[stream] for stream in self._client.running]
        arrived = [answer for answer in running if answer.due_s <= now]
        ttft_s = [answer.times[0] - answer.due_s for answer in answers if answer.times]
        p50, p99 = p50_and_p99(ttft_s)
        return Snapshot(
            time_s=now,
            total=len(self._records),
            sent=sum(answer.due_s <= now for answer in answers),
            finished=self._finished,
            failed=self._failed,
            running=len(arrived),
            waiting=sum(answer.waits(now) for answer in arrived),
            tokens_per_s=self._tokens_per_s(now),
            ttft_p50_s=p50,
            ttft_p99_s=p99,
            stalled=sum(answer.stalled(now) for answer in arrived),
        )


def _arrival(at_s: float, index: int, of: int) -> dict[str, float]:
    """What a request says of its arrival, as the emulator reads it."""
    return {"at_s": at_s, "index": index, "of": of}
