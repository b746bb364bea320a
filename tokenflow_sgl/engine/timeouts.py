"""SGLang's timeouts, of which the time that a stream was paused is no part.

SGLANG_REQ_RUNNING_TIMEOUT counts from a request's first prefill on and ends it with HTTP 503. It is
meant for requests that do not get on; a paused stream is ahead of its reader.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from tokenflow_sgl.engine.sglang.request import Req


class PausedTime:
    """How long each live stream was paused, in seconds of `clock`, on which SGLang's timeouts run.

    Only the leader asks SGLang's timeouts, so the ranks need not agree on these times.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._since: dict[Any, float] = {}
        self._before: dict[Any, float] = {}

    def begin(self, request: Req) -> None:
        """Stop a request's time: it is paused."""
        self._since[request] = self._clock()

    def end(self, request: Req) -> None:
        """The request runs again; does nothing for one that was not paused."""
        if (since := self._since.pop(request, None)) is not None:
            self._before[request] = self._before.get(request, 0.0) + self._clock() - since

    def forget(self, request: Req) -> None:
        """Drop what is kept of a request that has ended."""
        self._since.pop(request, None)
        self._before.pop(request, None)

    def overdue(self, requests: Iterable[Req], timeout: float) -> set[str]:
        """Ids of those `requests` that ran, pauses not counted, for more than `timeout` seconds."""
        now = self._clock()
        return {
            request.rid
            for request in requests
            if now - request.time_stats.forward_entry_time - self._of(request, now) > timeout
        }

    def _of(self, request: Req, now: float) -> float:
        return self._before.get(request, 0.0) + now - self._since.get(request, now)
