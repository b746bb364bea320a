"""What the simulated host keeps copies of where it is full."""

from __future__ import annotations

import numpy as np
import pytest
from kv_memories import by, memory

from tokenflow_sgl.lab.sim.kv_memory import KVMemory


def held_once(there: KVMemory, *streams: int) -> None:
    """Streams of 40 tokens each have run, one after the other."""
    for stream in streams:
        there.allocate(40)
        there.release(stream, 40, by(0.0))
        there.settle(0.0)


def test_a_full_host_keeps_the_copies_of_what_is_on_the_device() -> None:
    there = memory(1000, 100)
    held_once(there, 1, 2, 3)
    there.allocate(1000)
    assert [there.match(stream) for stream in (1, 2, 3)] == [(0, 40), (0, 40), (0, 0)]
    assert (there.evicted, there.lost) == (80, 40)


def test_a_full_host_forgets_what_has_left_the_device_longest_ago() -> None:
    there = memory(100, 100)
    held_once(there, 1, 2)
    there.allocate(60)  # evicts the first one
    there.give_back(60)
    held_once(there, 3)
    assert [there.match(stream) for stream in (1, 2, 3)] == [(0, 0), (40, 40), (40, 40)]


def test_what_is_looked_at_leaves_the_device_last() -> None:
    there = memory(80, 120)
    held_once(there, 1, 2)
    there.touch(1)
    held_once(there, 3)
    assert [there.match(stream) for stream in (1, 2, 3)] == [(40, 40), (0, 40), (40, 40)]


def test_what_is_looked_at_is_forgotten_last() -> None:
    there = memory(80, 160)
    held_once(there, 1, 2, 3, 4)  # the first two have left the device
    there.touch(1)
    held_once(there, 0)
    assert [there.match(stream)[1] for stream in range(5)] == [40, 40, 0, 40, 40]


def test_a_running_stream_is_copied_only_where_the_host_has_room() -> None:
    there = memory(100, 40)
    held_once(there, 1)
    there.allocate(40)
    there.take(2, 0)
    assert there.write(2, 30, lambda tokens: pytest.fail("nowhere to write to")) == 0
    assert there.unwritten(np.array([2]), np.array([40])).tolist() == [40]


def test_room_that_is_set_aside_is_no_copy_s() -> None:
    there = memory(40, 100)
    held_once(there, 1, 2)
    assert there.host.reserve(50) == 50, "the first one has left the device"
    assert [there.match(stream)[1] for stream in (1, 2)] == [0, 40]
    assert there.host.reserve(50) == 10, "the second one has not"
    there.host.free(60)
    held_once(there, 3)
    assert [there.match(stream)[1] for stream in (2, 3)] == [40, 40]
