"""The clock of an emulated device: the wall's, or a virtual one that only the device's work moves.

On the wall clock a step really takes its time, and whatever else the machine does shows in the
figures. On the virtual clock nothing sleeps: waiting for the device *is* moving the clock to the
moment when the device is done. Work of the CPU takes no virtual time, so a run gives the same
figures on every machine.
"""

import heapq
import itertools
import os
import threading
import time
from functools import cache
from weakref import WeakKeyDictionary

VIRTUAL_VARIABLE = "TOKENFLOW_EMU_VIRTUAL_TIME"
"""Set to 1: the device runs on a virtual clock."""
IDLE_PASS_S = 2.5e-4
"""Virtual seconds that a pass of SGLang's loop takes in which it starts no step, though requests
are there: about what such a pass takes on a real server."""
PATIENCE_S = 300.0
"""Wall-clock seconds that the clock waits for threads whose work takes no virtual time."""
LONGEST_PASS = 4
"""So many times an idle pass doubles its length while threads sleep: 4 ms."""
_SPIN_S = 1e-4
"""The last stretch of a wait is spun: Linux wakes a sleeper some 60 microseconds late."""


class WallClock:
    """SGLang's own clock for request time stamps."""

    def now(self) -> float:
        """Seconds, from an unknown zero."""
        return time.perf_counter()

    def wait_until(self, moment: float) -> None:
        """Return at `moment`, or at once if it has passed."""
        # Threads beside the scheduler's must not take the interpreter from it by spinning.
        spin = _SPIN_S if _on_main_thread() else 0.0
        while (left := moment - self.now()) > 0:
            if left > spin:
                time.sleep(left - spin)

    def expect(self, moment: float) -> None:
        """Something will be done at `moment`; the wall clock gets there by itself."""


class Worker:
    """A thread beside the scheduler's, for what it does when it does not sleep on the clock.

    Attributes:
        thread: The thread, once it runs.
        asleep: Whether it sleeps on the clock, and so is not at work whatever waits for it.
        retired: Whether the clock counts on it no more.
    """

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.asleep = self.retired = False


class VirtualClock:
    """Seconds that pass when the scheduler waits for the device, and at no other time.

    Only the main thread, on which SGLang's scheduler runs, moves it. Other threads sleep on it. It
    stops at each moment that a thread sleeps for, and goes on when that thread, and the workers to
    which it handed something, are done with what they do then: it takes no virtual time. Which
    workers are at work `begin` and `end` say; of other threads the clock does not know.
    """

    def __init__(self) -> None:
        self._now = self._expected = 0.0
        self._long_passes = 0
        self.changes = threading.Condition()
        self._workers = WeakKeyDictionary[threading.Thread, Worker]()
        self._at_work: set[Worker] = set()
        self._asleep: list[tuple[float, int, Worker | None, threading.Event]] = []
        self._sleeps = itertools.count()

    def now(self) -> float:
        """Seconds since the server was started, as far as its device worked."""
        return self._now

    def wait_until(self, moment: float) -> None:
        """Move to `moment`, or stay if it has passed; on other threads: sleep until it is so late.

        Raises:
            RuntimeError: A worker does not come to an end.
        """
        if not _on_main_thread():
            self._sleep_until(moment)
            return
        with self.changes:
            self._long_passes = 0
            self._rest()
            while self._asleep and self._asleep[0][0] <= moment:
                due, _, worker, wake = heapq.heappop(self._asleep)
                self._now = max(self._now, due)
                if worker is not None:
                    worker.asleep = False
                    self.begin(worker)
                wake.set()
                self._rest()
            self._now = max(self._now, moment)

    def idle_pass(self, latest: float) -> None:
        """Let a pass of SGLang's loop take its time, but none beyond the moment `latest`.

        While threads sleep, passes in which nothing happens grow longer, until the next one of them
        wakes up: thousands of passes would be spent on one transfer.
        """
        with self.changes:
            self._rest()
            growth = 2 ** min(self._long_passes, LONGEST_PASS) if self._asleep else 1
            quiet = self._now + IDLE_PASS_S * growth
            end = min(quiet, latest, *(moment for moment, *_ in self._asleep[:1]))
            passes = self._long_passes + 1 if end == quiet else 0
            self.wait_until(end)
            self._long_passes = passes

    def expect(self, moment: float) -> None:
        """Something will be done at `moment`."""
        self._expected = max(self._expected, moment)

    def settle(self) -> None:
        """Let the device and the workers do all that they have to do: no request is there."""
        while True:
            self.wait_until(self._now)  # until all that work have come to their next sleep
            with self.changes:
                sleeps = (
                    moment
                    for moment, _, worker, _ in self._asleep
                    if worker is None or not worker.retired
                )
                end = max(self._expected, *sleeps, self._now)
            if end == self._now:
                return
            self.wait_until(end)

    def know(self, worker: Worker) -> None:
        """This thread is that of the worker."""
        with self.changes:
            worker.thread = threading.current_thread()
            self._workers[worker.thread] = worker

    def begin(self, worker: Worker) -> None:
        """It has something to do from now on, or from when it wakes up."""
        with self.changes:
            if not worker.asleep and not worker.retired:
                self._at_work.add(worker)

    def end(self, worker: Worker) -> None:
        """It has nothing to do any more."""
        with self.changes:
            self._at_work.discard(worker)
            self.changes.notify_all()

    def retire(self, worker: Worker) -> None:
        """Its thread is to end: what it still does takes no time, and the clock does not wait."""
        with self.changes:
            worker.retired = True
            self.end(worker)
            for _, _, sleeper, wake in self._asleep:
                if sleeper is worker:
                    wake.set()

    def _sleep_until(self, moment: float) -> None:
        """Return when the clock is moved next and stops at `moment`, or has passed it.

        Not before, also where it has passed already: else what the scheduler finds done would
        depend on how fast this thread is.
        """
        wake = threading.Event()
        with self.changes:
            worker = self._workers.get(threading.current_thread())
            if worker is not None and worker.retired:
                return
            heapq.heappush(self._asleep, (moment, next(self._sleeps), worker, wake))
            if worker is not None:
                worker.asleep = True
                self.end(worker)
        wake.wait()

    def _rest(self) -> None:
        if not self.changes.wait_for(lambda: not self._at_work, PATIENCE_S):
            stuck = ", ".join(
                "a thread" if worker.thread is None else worker.thread.name
                for worker in self._at_work
            )
            raise RuntimeError(
                f"the virtual clock stands: {stuck} did not end its work in {PATIENCE_S:g} s"
            )


Clock = WallClock | VirtualClock


def virtual_time() -> bool:
    """Whether this process is told to run on a virtual clock.

    Raises:
        ValueError: The environment variable is neither 0 nor 1.
    """
    text = os.environ.get(VIRTUAL_VARIABLE, "0")
    if text not in ("0", "1"):
        raise ValueError(f"{VIRTUAL_VARIABLE} is {text!r}; allowed is 0 or 1")
    return text == "1"


@cache
def the_clock() -> Clock:
    """The clock of this process, made of its environment on first use."""
    return VirtualClock() if virtual_time() else WallClock()


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def now() -> float:
    """Seconds on the clock of this process."""
    return the_clock().now()
