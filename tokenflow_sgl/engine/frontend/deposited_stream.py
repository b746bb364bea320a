"""One stream on its way through a token deposit."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing

from tokenflow_sgl.engine.frontend.held_gauge import HeldGauge
from tokenflow_sgl.engine.frontend.held_output import Chunk, HeldOutput
from tokenflow_sgl.engine.shared_clock import local_time, wall_seconds
from tokenflow_sgl.lifecycle.reader_updates import counted
from tokenflow_sgl.placement.deposit import Deposit


class DepositedStream:
    """One stream and its deposit. Times are seconds of the device.

    Args:
        output: Keeps what waits.
        interval: Seconds between two tokens.
        gauge: Shows how many tokens wait.
        hidden: Whether reasoning is not read, so that it takes no interval.
        longest_rest: Seconds for which a stream may rest, all its rests together; then it is
            delivered as before.
    """

    def __init__(
        self,
        output: HeldOutput,
        interval: float,
        gauge: HeldGauge,
        *,
        hidden: bool,
        longest_rest: float,
    ) -> None:
        self._deposit = Deposit(interval)
        self._output, self._gauge = output, gauge
        self._hidden, self._longest_rest = hidden, longest_rest
        self._last: Chunk | None = None
        self._changed = asyncio.Event()
        self._rest: asyncio.TimerHandle | None = None
        self._rested = self._rests_since = 0.0
        self._over = False

    def read_at(self, rate: float) -> None:
        """The reader reads so many tokens per second from now on; 0: it has looked away."""
        if rate:
            self._deliver_each(1.0 / rate)
        elif self._rest is None and (left := self._longest_rest - self._rested) > 0.0:
            self._rests_since = local_time()
            self._rest = asyncio.get_running_loop().call_later(
                wall_seconds(left), self._deliver_each, self._deposit.interval
            )
            self._deposit.change(math.inf, self._rests_since)

    def unseen(self) -> None:
        """The client got no text for what was delivered last."""
        self._deposit.unseen()

    def _deliver_each(self, interval: float) -> None:
        self._end_rest()
        self._deposit.change(interval, local_time())
        self._changed.set()

    def _end_rest(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
            self._rested += counted(local_time() - self._rests_since)

    async def delivered(self, chunks: AsyncGenerator[Chunk, None]) -> AsyncGenerator[Chunk, None]:
        """What the client is to be sent, when it is to be sent.

        Args:
            chunks: SGLang's, of this stream alone; the last one has a finish reason.
        """
        filling = asyncio.create_task(self._fill(chunks))
        filling.add_done_callback(lambda _: self._changed.set())
        try:
            while not filling.done():
                self._changed.clear()
                if due := self._deposit.take(local_time()):
                    self._gauge.add(-due)
                    yield self._output.cut(due)
                else:
                    await self._wait()
            filling.result()  # raises what SGLang raised
            for chunk in (self._output.rest(), self._last):
                if chunk is not None:
                    yield chunk
        finally:
            self._over = True
            self._end_rest()
            self._gauge.add(-self._deposit.held)
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)

    async def _fill(self, chunks: AsyncGenerator[Chunk, None]) -> None:
        """Put what comes into the deposit, at once: SGLang merges what is not taken."""
        async with aclosing(chunks):
            async for chunk in chunks:
                if self._over:
                    # Cancelled, which asyncio.wait_for (Python 3.11) hides if an output came, too.
                    return
                if chunk["meta_info"].get("finish_reason") is not None:
                    self._last = chunk
                    continue
                thought = self._output.reasoning
                new = self._output.add(chunk)
                free = self._output.reasoning - thought if self._hidden else 0
                self._deposit.put(new, local_time(), free=min(free, new))
                self._gauge.add(new)
                self._changed.set()

    async def _wait(self) -> None:
        """Until something is due, or is different."""
        due, timer = self._deposit.due(), None
        if math.isfinite(due):
            timer = asyncio.get_running_loop().call_later(
                wall_seconds(max(due - local_time(), 0.0)), self._changed.set
            )
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()
