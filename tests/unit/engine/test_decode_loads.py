"""Copies of resumed streams on a decode server: when their streams may join, and what is kept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tokenflow_sgl.costs import Links
from tokenflow_sgl.engine.decode_server import decode_loads as module
from tokenflow_sgl.engine.decode_server.decode_loads import PASSES, DecodeLoads, DecodeTransfers
from tokenflow_sgl.engine.shared_clock import SharedClock

RATE = 1000.0


class Event:
    def __init__(self) -> None:
        self.waited = False

    def query(self) -> bool:
        return self.waited

    def synchronize(self) -> None:
        self.waited = True

    def elapsed_time(self, _end: Event) -> float:
        return 50.0


class Completion(NamedTuple):
    """SGLang's, of a copy that was submitted."""

    start_event: Any
    finish_event: Any
    timing_enabled: bool = True


class Engine:
    """SGLang's, with the hooks around it as the registry puts them."""

    def submit_host_to_device(self, tokens: int) -> Completion:
        made = Completion(Event(), Event())
        return module.on_load(made, self, [SimpleNamespace(device_indices=[0] * tokens)])


class Tree:
    """Restores as SGLang does, and waits for the copy."""

    def __init__(self) -> None:
        self.cache_controller = SimpleNamespace(l2_transfer_engine=Engine())
        self.discarded: list[Any] = []

    def restore_kv_cache(self, req: str, backup: Any) -> None:
        def restore(tree: Tree, _req: str, backup: Any) -> None:
            engine = tree.cache_controller.l2_transfer_engine
            engine.submit_host_to_device(backup.tokens).finish_event.synchronize()
            tree.discard_kv_cache_backup(backup)

        module.beside_steps(restore, self, req, backup)

    def discard_kv_cache_backup(self, backup: Any) -> None:
        module.when_landed(lambda tree, given: tree.discarded.append(given), self, backup)


@pytest.fixture
def clock() -> SharedClock:
    made = SharedClock()
    made.load_rate = RATE
    return made


@pytest.fixture
def tree() -> Tree:
    return Tree()


@pytest.fixture
def loads(tree, clock) -> DecodeLoads:
    return DecodeLoads(tree, clock)


def backup(tokens: int = 10) -> Any:
    return SimpleNamespace(tokens=tokens)


def passes_until_joined(loads: DecodeLoads, clock: SharedClock, name: str, step: float) -> int:
    """How many passes of so many seconds it takes, after the one of the submission."""
    for passed in range(100):
        if name not in loads.coming(alone=False):
            return passed
        clock.now += step
    raise AssertionError("it never joins")


def test_without_loads_of_ours_the_tree_waits_itself(tree) -> None:
    kept = backup()
    tree.restore_kv_cache("a", kept)
    assert tree.discarded == [kept]


def test_a_stream_joins_when_its_copy_has_landed(tree, loads, clock) -> None:
    kept = backup()
    tree.restore_kv_cache("a", kept)
    event = loads._under_way["a"].ack.finish_event
    assert not event.waited, "the thread goes on"
    assert not tree.discarded, "the copy still reads it"
    assert passes_until_joined(loads, clock, "a", 0.025) == PASSES
    assert event.waited
    assert tree.discarded == [kept]
    assert not loads.coming(alone=False)


def test_copies_wait_for_each_other_on_the_link(tree, loads, clock) -> None:
    for name in "abc":
        tree.restore_kv_cache(name, backup(40))  # 40 ms each
    joined: dict[str, int] = {}
    for passed in range(9):
        coming = loads.coming(alone=False)
        for name in "abc":
            if name not in coming:
                joined.setdefault(name, passed)
        clock.now += 0.025
    # The link begins with them in the pass after that of the submission.
    assert joined == {"a": 3, "b": 5, "c": 6}


def test_while_the_link_is_not_known_passes_count(tree, loads, clock) -> None:
    clock.load_rate = float("nan")
    tree.restore_kv_cache("a", backup(10**6))
    assert passes_until_joined(loads, clock, "a", 0.0) == PASSES


def test_where_no_step_runs_the_copy_is_waited_for(tree, loads) -> None:
    tree.restore_kv_cache("a", backup(10**6))
    event = loads._under_way["a"].ack.finish_event
    assert not loads.coming(alone=True)
    assert event.waited


def test_memory_is_not_given_away_under_a_copy(tree, loads) -> None:
    """Aborts, and pauses of the engine."""
    kept = [backup(), backup(), backup()]
    for name, each in zip("abc", kept, strict=True):
        tree.restore_kv_cache(name, each)
    events = {name: load.ack.finish_event for name, load in loads._under_way.items()}
    loads.end("b")
    loads.end("nothing of it is under way")
    assert [events[name].waited for name in "abc"] == [False, True, False]
    assert tree.discarded == [kept[1]]
    loads.settle()
    assert tree.discarded == [kept[1], kept[0], kept[2]]
    assert all(event.waited for event in events.values())


def test_what_fails_is_not_under_way(tree, loads) -> None:
    def fails(*_args: Any) -> None:
        raise RuntimeError("no such device")

    with pytest.raises(RuntimeError, match="no such device"):
        module.beside_steps(fails, tree, "a", backup())
    assert not loads.coming(alone=False)
    other = backup()
    tree.discard_kv_cache_backup(other)
    assert tree.discarded == [other]


def test_copies_are_measured_and_not_planned_by(tree, loads, clock) -> None:
    told = []
    recorder = SimpleNamespace(link=lambda *said: told.append(said))
    watch = DecodeTransfers(loads, recorder)
    tree.restore_kv_cache("a", backup(100))
    engine = tree.cache_controller.l2_transfer_engine
    stored = Completion(Event(), Event())
    assert module.on_store(stored, engine, [SimpleNamespace(device_indices=[0] * 30)]) is stored
    stored.finish_event.synchronize()
    loads.coming(alone=True)
    assert watch.look() == (30 / 0.05, 100 / 0.05)
    loads.coming(alone=False)
    watch.look()
    assert {each[0] for each in told} == {"store", "load"}
    assert not loads.ack_load_queue
    assert not loads.ack_write_queue
    assert watch.links(clock) == Links()
