"""KV memory: what is held, cached, evicted and written back."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tokenflow_sgl.sim.memory import Memory


def test_the_longest_unused_goes_first() -> None:
    memory = Memory(100, 0)
    for stream, tokens in ((1, 30), (2, 40), (3, 30)):
        memory.allocate(tokens)
        memory.cache(stream, tokens, ready=0.0)
        memory.settle(0.0)
    assert memory.free == 100
    memory.allocate(50)
    assert [memory.resident(stream) for stream in (1, 2, 3)] == [0, 20, 30]
    assert memory.lost == 50


def test_a_copy_on_the_host_makes_an_eviction_harmless() -> None:
    memory = Memory(100, 100)
    memory.allocate(60)
    memory.cache(1, 60, ready=2.0)
    assert memory.free == 40  # the copy is under way
    assert memory.settles_at() == 2.0
    memory.settle(2.0)
    memory.allocate(100)
    assert (memory.evicted, memory.lost) == (60, 0)
    assert (memory.resident(1), memory.on_host(1)) == (0, 60)


def test_only_what_is_new_is_written() -> None:
    memory = Memory(100, 100)
    memory.allocate(60)
    assert memory.unwritten(1, 60) == 60
    memory.cache(1, 60, ready=0.0)
    memory.settle(0.0)
    assert memory.take_back(1) == 60
    memory.allocate(5)
    assert memory.unwritten(1, 65) == 5
    assert Memory(100, 0).unwritten(1, 60) == 0


def test_a_stream_can_be_taken_back_while_it_is_copied() -> None:
    memory = Memory(100, 100)
    memory.allocate(60)
    memory.cache(1, 60, ready=5.0)
    assert memory.resident(1) == 60
    assert memory.take_back(1) == 60
    assert (memory.held, memory.free, memory.settles_at()) == (60, 40, None)


def test_a_full_host_forgets_the_oldest_copy() -> None:
    memory = Memory(1000, 100)
    for stream in (1, 2, 3):
        memory.allocate(40)
        memory.cache(stream, 40, ready=0.0)
    assert [memory.on_host(stream) for stream in (1, 2, 3)] == [0, 40, 40]


class Accounts(RuleBasedStateMachine):
    """Any order of calls that an engine may make keeps the books."""

    @initialize(host=st.sampled_from([0, 50, 500]))
    def start(self, host: int) -> None:
        self.memory = Memory(200, host)
        self.running: dict[int, int] = {}
        self.paused: set[int] = set()
        self.now = 0.0
        self.next = 0

    @rule(tokens=st.integers(1, 80))
    def begin(self, tokens: int) -> None:
        if tokens <= self.memory.free:
            self.memory.allocate(tokens)
            self.running[self.next] = tokens
            self.next += 1

    @precondition(lambda self: self.running)
    @rule(data=st.data(), delay=st.floats(0.0, 3.0))
    def pause(self, data: st.DataObject, delay: float) -> None:
        stream = data.draw(st.sampled_from(sorted(self.running)))
        # One link: copies end in the order in which they begin.
        last = max([entry[0] for entry in self.memory._leaving], default=self.now)
        self.memory.cache(stream, self.running.pop(stream), ready=max(self.now, last) + delay)
        self.paused.add(stream)

    @precondition(lambda self: self.paused)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        stream = data.draw(st.sampled_from(sorted(self.paused)))
        self.paused.discard(stream)
        back = self.memory.take_back(stream)
        if back:
            self.running[stream] = back

    @rule(seconds=st.floats(0.0, 2.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.memory.settle(self.now)

    @invariant()
    def books_balance(self) -> None:
        memory = getattr(self, "memory", None)
        if memory is None:
            return
        assert memory.held == sum(self.running.values())
        resident = sum(memory.resident(stream) for stream in range(self.next))
        assert memory.held + resident <= memory.device
        assert 0 <= memory.free <= memory.device
        on_host = sum(memory.on_host(stream) for stream in range(self.next))
        assert on_host <= memory.host


TestAccounts = Accounts.TestCase
TestAccounts.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
