"""Storage threads in virtual time: the clock stops at every end of theirs, and nowhere else."""

import itertools
import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tokenflow_sgl_emulator.storage.storage_threads import WorkQueue
from tokenflow_sgl_emulator.timed import clock as clock_module
from tokenflow_sgl_emulator.timed.clock import IDLE_PASS_S, VirtualClock, WallClock


class Storage:
    """Two threads as HiCache has them: one transfers, the next one tells the scheduler."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.work, self.acks = WorkQueue(clock), WorkQueue(clock)
        self.seen: list[tuple[str, float]] = []
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=run) for run in (self._transfer, self._sync)]
        for thread in self.threads:
            thread.start()

    def _transfer(self) -> None:
        while not self.stop.is_set():
            for name, seconds in self.work.get() or ():
                self.clock.wait_until(self.clock.now() + seconds)
                self.acks.put(name)

    def _sync(self) -> None:
        while not self.stop.is_set():
            if name := self.acks.get():
                self.seen.append((name, self.clock.now()))

    def end(self) -> None:
        self.stop.set()
        self.work.put(None)
        self.acks.put(None)
        for thread in self.threads:
            thread.join()


@pytest.fixture
def storage() -> Iterator[Storage]:
    made = Storage(VirtualClock())
    yield made
    made.end()


def test_the_clock_stops_at_every_transfers_end(storage: Storage) -> None:
    storage.work.put([("a", 1.0), ("b", 2.0), ("c", 4.0)])
    storage.clock.wait_until(0.5)
    assert storage.seen == []
    storage.clock.wait_until(3.0)
    assert storage.seen == [("a", 1.0), ("b", 3.0)]
    storage.clock.wait_until(100.0)
    assert storage.seen[2:] == [("c", 7.0)] and storage.clock.now() == 100.0


def test_work_that_waits_behind_a_transfer_does_not_hold_the_clock(storage: Storage) -> None:
    storage.work.put([("a", 1.0)])
    storage.clock.wait_until(0.5)
    storage.work.put([("b", 1.0)])
    storage.clock.wait_until(5.0)
    assert storage.seen == [("a", 1.0), ("b", 2.0)]


def test_what_takes_no_time_is_done_at_the_next_stop(storage: Storage) -> None:
    storage.clock.wait_until(2.0)
    storage.work.put([("a", 0.0), ("b", 0.0)])
    storage.clock.wait_until(2.0)
    assert storage.seen == [("a", 2.0), ("b", 2.0)]


def test_an_idle_server_ends_its_transfers(storage: Storage) -> None:
    storage.work.put([("a", 1.0), ("b", 2.0)])
    storage.clock.settle()
    assert storage.seen == [("a", 1.0), ("b", 3.0)] and storage.clock.now() == 3.0
    storage.clock.settle()
    assert storage.clock.now() == 3.0, "nothing is under way: the clock stands"


def test_idle_passes_grow_until_a_transfer_ends(storage: Storage) -> None:
    storage.work.put([("a", 0.1), ("b", 0.1)])
    moments = []
    while len(storage.seen) < 2:
        storage.clock.idle_pass(math.inf)
        moments.append(storage.clock.now())
    assert 0.1 in moments and storage.seen == [("a", 0.1), ("b", 0.2)]
    assert moments[-1] == 0.2, "the scheduler looks when it has ended, and not later"
    passes = [b - a for a, b in itertools.pairwise(moments)]
    assert passes[:5] == pytest.approx([IDLE_PASS_S * 2**n for n in (1, 2, 3, 4, 4)])
    after = moments.index(0.1)
    assert passes[after] == pytest.approx(IDLE_PASS_S), "short again when something has happened"
    assert len(moments) < 80, "400 of them at their ordinary length"
    storage.clock.idle_pass(math.inf)
    assert storage.clock.now() == pytest.approx(0.2 + IDLE_PASS_S), "nothing is under way"


def test_threads_that_are_stopped_do_not_wait_for_the_clock(storage: Storage) -> None:
    storage.work.put([("a", 1.0), ("b", 1.0)])
    storage.clock.wait_until(0.5)
    storage.end()
    storage.clock.wait_until(9.0)
    assert storage.clock.now() == 9.0


def test_every_run_is_the_same() -> None:
    def run() -> list[tuple[str, float]]:
        made = Storage(VirtualClock())
        for number in range(20):
            made.work.put([(str(number), 0.03 * (number % 4))])
            made.clock.wait_until(made.clock.now() + 0.02)
        made.clock.settle()
        made.end()
        return made.seen

    assert run() == run() == run()


def test_a_thread_that_the_clock_does_not_know_sleeps_all_the_same() -> None:
    clock, woken = VirtualClock(), threading.Event()

    def sleep() -> None:
        clock.wait_until(3.0)
        woken.set()

    threading.Thread(target=sleep).start()
    while not woken.is_set():
        clock.settle()
    assert clock.now() == 3.0


def test_a_thread_that_never_ends_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stuck = VirtualClock(), threading.Event()
    queue = WorkQueue(clock)

    def work() -> None:
        queue.get()
        stuck.wait()
        queue.get()

    thread = threading.Thread(target=work, name="the stuck one")
    thread.start()
    queue.put("work")
    while queue.qsize():  # until it has begun
        pass
    said = "the virtual clock stands: the stuck one did not end"
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match=said):
        patch.setattr(clock_module, "PATIENCE_S", 0.01)
        clock.wait_until(1.0)
    stuck.set()
    clock.wait_until(1.0)  # with all patience: the thread may need its time to end
    assert clock.now() == 1.0
    queue.put(None)
    thread.join()


def test_on_the_wall_clock_other_threads_do_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would take the interpreter from the scheduler for the last stretch of every wait."""
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(clock_module.time, "sleep", sleep)
    monkeypatch.setattr(WallClock, "now", lambda self: now[0])

    def wait(**how: Any) -> None:
        thread = threading.Thread(target=WallClock().wait_until, args=(1.0,))
        thread.start()
        thread.join()

    wait()
    assert slept == [1.0]
