"""HiCache's storage threads on the emulated platform: their start, and their part in virtual time.

Queries, reads, writes and the agreement between ranks each have a thread that takes its work from
a queue. On a virtual clock that work takes no time but what the link takes, so the clock has to
know when they are at work.
"""

import threading
from collections.abc import Callable
from queue import Queue
from typing import Any

from tokenflow_sgl_emulator.timed.clock import VirtualClock, Worker, the_clock

QUEUES = ("prefetch_queue", "prefetch_buffer", "prefetch_sync_queue", "backup_queue")
"""Of SGLang's cache controller: those that its storage threads take from, one thread each."""


class WorkQueue(Queue[Any]):
    """A queue from which one thread takes its work, and a clock that knows whether it has some.

    Args:
        clock: Waits for the thread wherever it stops.
    """

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock
        self._worker = Worker()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """As in the standard library; the thread is at work from here on."""
        if item is None:
            # So SGLang stops its threads. It waits for them, and cannot move the clock meanwhile.
            self._clock.retire(self._worker)
            super().put(item, block, timeout)
            return
        with self._clock.changes:
            super().put(item, block, timeout)
            self._clock.begin(self._worker)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """As in the standard library; the thread is done with what it got before."""
        with self._clock.changes:
            if self._worker.thread is not threading.current_thread():
                # The first one, or, as SGLang keeps its queues, one in place of a stopped one.
                self._worker = self._worker if self._worker.thread is None else Worker()
                self._clock.know(self._worker)
                if not self.empty():
                    self._clock.begin(self._worker)
            if self.empty():
                self._clock.end(self._worker)
        return super().get(block, timeout)


def start_storage_threads(original: Callable[..., Any], controller: Any) -> None:
    """Around SGLang's start of its threads, with the server or when a backend is attached."""
    from sglang.srt.mem_cache.utils import get_hash_str

    # SGLang compiles its page hash when it is first used, which takes 20 s: not in a request.
    get_hash_str([0], page_size=1)
    original(controller)
    clock = the_clock()
    if isinstance(clock, VirtualClock):
        for name in QUEUES:
            known = getattr(controller, name)
            setattr(controller, name, WorkQueue(clock))
            known.put(None)  # no work: its thread looks for some again, in the new queue
