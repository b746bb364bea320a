"""KV memory: what is held, cached, evicted and written back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kv_memories import by, memory, request

from tokenflow_sgl.lab.sim.kv_memory import KVMemory
from tokenflow_sgl.lab.sim.prefixes import Prefixes


def test_the_longest_unused_goes_first() -> None:
    there = memory(100, 0)
    for stream, tokens in ((1, 30), (2, 40), (3, 30)):
        there.allocate(tokens)
        there.release(stream, tokens, by(0.0))
    assert there.free == 100
    assert there.allocate(50) == 0
    assert [there.match(stream) for stream in (1, 2, 3)] == [(0, 0), (20, 20), (30, 30)]
    assert there.lost == 50


def test_a_copy_on_the_host_makes_an_eviction_harmless() -> None:
    there = memory(100, 100)
    there.allocate(60)
    there.release(1, 60, by(2.0))
    assert there.free == 40  # the copy is under way
    assert there.settles_at() == 2.0
    there.settle(2.0)
    assert there.allocate(100) == 0
    assert (there.evicted, there.lost) == (60, 0)
    assert there.match(1) == (0, 60)


@pytest.mark.parametrize(("keep", "second"), [(True, 10), (False, 70)])
def test_a_copy_that_is_not_kept_is_made_again(keep: bool, second: int) -> None:
    there = memory(100, 100, write_back=True, keep_copies=keep)
    there.allocate(60)
    there.release(1, 60, by(0.0))
    assert there.allocate(100) == 60  # all of it leaves, and is copied
    there.release(2, 100, by(0.0), keep=False)
    assert there.match(1) == (0, 60)
    there.take(1, 0)
    there.allocate(70)
    there.release(1, 70, by(0.0))
    assert there.match(1) == (70, 70)
    assert there.allocate(100) == second
    assert there.match(1) == (0, 70)


def test_only_what_is_new_is_written() -> None:
    written: list[int] = []

    def store(tokens: int) -> float:
        written.append(tokens)
        return 0.0

    there = memory(200, 200)
    there.allocate(60)
    there.release(1, 60, store)
    there.settle(0.0)
    there.take(1, 60)
    assert there.held == 60
    there.allocate(5)
    there.release(1, 65, store)
    assert written == [60, 5]


def test_nothing_is_written_without_a_host() -> None:
    there = memory(100, 0)
    there.allocate(60)
    there.release(1, 60, lambda tokens: pytest.fail("nowhere to write to"))
    assert there.free == 100


def test_a_stream_can_be_taken_back_while_it_is_copied() -> None:
    there = memory(100, 100)
    there.allocate(60)
    there.release(1, 60, by(5.0))
    assert there.match(1) == (60, 60)
    there.take(1, 60)
    assert (there.held, there.free, there.settles_at()) == (60, 40, None)


def test_write_back_copies_when_it_evicts() -> None:
    there = memory(100, 100, write_back=True)
    there.allocate(60)
    there.release(1, 60, lambda tokens: pytest.fail("only an eviction writes"))
    assert there.free == 100
    # The whole stretch is written, once, though only a part of it has to go now.
    assert there.allocate(50) == 60
    assert there.match(1) == (50, 60)
    assert there.allocate(30) == 0
    assert there.match(1) == (20, 60)
    assert (there.evicted, there.lost) == (40, 0)


# ---- shared prefixes ------------------------------------------------------------------


def test_a_shared_prefix_is_there_once() -> None:
    there = memory(400, 0, request((7,)), request((7,)))
    for stream in (0, 1):
        there.take(stream, there.match(stream)[0])
        new = 70 - there.match(stream)[0]
        there.allocate(new)
        there.extend(stream, 70 - new, 70)
    assert there.held == 40 + 2 * 30
    there.release(0, 70, by(0.0))
    assert there.held == 40 + 30  # the other one still reads the prefix
    assert there.match(0) == (70, 70)
    assert there.evictable(0) == 30
    there.release(1, 70, by(0.0))
    assert (there.held, there.free) == (0, 400)
    assert there.evictable(0) == 70


def test_two_streams_that_compute_the_same_keep_one_copy() -> None:
    there = memory(400, 0, request((7,)), request((7,)))
    there.allocate(140)
    there.extend(0, 0, 70)
    there.extend(1, 0, 70)
    assert there.held == 40 + 2 * 30


def test_what_continues_a_prefix_goes_before_it() -> None:
    there = memory(200, 0, request((7, 8)), request((7,)))
    there.allocate(110)
    there.extend(0, 0, 110)
    there.release(0, 110, by(0.0))
    there.allocate(140)
    # Own stretch and block 8 (no other stream's) are gone in part, the shared block is whole.
    assert there.match(0) == (60, 60)
    assert there.match(1) == (40, 40)


def test_a_retracted_stream_leaves_only_what_it_shares() -> None:
    there = memory(200, 0, request((7,)), request((7,)))
    there.allocate(70)
    there.extend(0, 0, 70)
    there.release(0, 70, by(0.0), keep=False)
    assert (there.held, there.match(0)) == (0, (40, 40))


def test_only_full_pages_are_kept() -> None:
    there = memory(100, 200, page=16)
    assert there.free == 96  # the last four tokens are no page
    there.allocate(there.paged(40))
    assert there.free == 48
    stored: list[int] = []

    def store(tokens: int) -> float:
        stored.append(tokens)
        return 0.0

    there.release(0, 40, store)
    there.settle(0.0)
    assert (there.held, there.match(0), stored) == (0, (32, 32), [32])


class Accounts(RuleBasedStateMachine):
    """Any order of calls that an engine may make keeps the books."""

    @initialize(
        host=st.sampled_from([0, 50, 500]),
        page=st.sampled_from([1, 4, 16]),
        write_back=st.booleans(),
        paths=st.lists(st.lists(st.integers(0, 2), max_size=3).map(tuple), min_size=8, max_size=8),
    )
    def start(self, host: int, page: int, write_back: bool, paths: list[tuple[int, ...]]) -> None:
        requests = [request(path, own=10) for path in paths]
        self.page = page
        self.prefixes = Prefixes(requests, {}, page)
        self.lengths = [one.prompt_tokens for one in requests]
        self.memory = KVMemory(300, host, self.prefixes, page=page, write_back=write_back)
        self.running: dict[int, int] = {}
        self.partly: set[int] = set()
        self.now = self.link = 0.0

    @rule(stream=st.integers(0, 7), extra=st.integers(0, 40), load=st.booleans())
    def begin(self, stream: int, extra: int, load: bool) -> None:
        if stream in self.running:
            return
        total = self.lengths[stream] + extra + 1
        most = (total - 1) // self.page * self.page
        resident, reach = (min(found, most) for found in self.memory.match(stream))
        assert 0 <= resident <= reach
        assert resident % self.page == reach % self.page == 0
        if self.memory.paged(total) - resident > self.memory.free - self.memory.evictable(stream):
            return
        self.memory.take(stream, resident)
        start = reach if load else resident
        self.memory.allocate(start - resident)
        self.memory.extend(stream, resident, start)
        self.memory.allocate(self.memory.paged(total) - start)
        self.memory.extend(stream, start, total)
        self.running[stream] = total

    @rule(stream=st.integers(0, 7), pages=st.integers(1, 9))
    def load_in_part(self, stream: int, pages: int) -> None:
        """A paused stream's KV comes back piece by piece: from the beginning, or where it was."""
        begun = self.running.get(stream)
        if begun is not None and stream not in self.partly:
            return
        resident, reach = self.memory.match(stream)
        start = resident if begun is None else begun
        tokens = min(pages * self.page, max(reach - start, 0))
        kept = 0 if begun is not None else self.memory.evictable(stream)
        if not tokens or tokens > self.memory.free - kept:
            return
        if begun is None:
            self.memory.take(stream, resident)
        self.memory.allocate(tokens)
        self.memory.extend(stream, start, start + tokens)
        self.running[stream] = start + tokens
        self.partly.add(stream)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), delay=st.floats(0.0, 3.0), keep=st.booleans())
    def stop(self, data: st.DataObject, delay: float, keep: bool) -> None:
        stream = data.draw(st.sampled_from(sorted(self.running)))
        # It comes back with a token more, whose KV is not there.
        self.lengths[stream] = max(self.lengths[stream], self.running[stream])

        def store(tokens: int) -> float:
            assert tokens > 0
            self.link = max(self.link, self.now) + delay  # copies end in the order they begin
            return self.link

        if stream in self.partly:  # nothing of it is thrown away
            self.partly.remove(stream)
            keep = True
        self.memory.release(stream, self.running.pop(stream), store, keep=keep)

    @rule(seconds=st.floats(0.0, 2.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.memory.settle(self.now)

    def reached(self, stream: int, tokens: int) -> set[int]:
        """Nodes of its path that a stream has something of."""
        at, found = 0, set()
        for node in self.prefixes.paths[stream]:
            if at < tokens:
                found.add(node)
            at += self.prefixes.tokens[node]
        return found

    @invariant()
    def books_balance(self) -> None:
        there = getattr(self, "memory", None)
        if there is None:
            return
        own = sum(
            max(self.memory.paged(total) - int(self.prefixes.shared[stream]), 0)
            for stream, total in self.running.items()
        )
        used = set().union(*(self.reached(*each) for each in self.running.items()))
        whole = {
            node
            for stream in self.running.keys() - self.partly
            for node in self.prefixes.paths[stream]
        }
        assert all(there._resident[node] == self.prefixes.tokens[node] for node in whole)
        assert there.held == own + sum(there._resident[node] for node in used)
        assert set(there._users) == used
        assert there._cached_sum == sum(there._resident[node] for node in there._cached)
        assert there._leaving_sum == sum(there._resident[node] for node in there._leaving)
        assert set(there._resident) == used | set(there._cached) | set(there._leaving)
        assert there.held + there._cached_sum + there._leaving_sum <= there.device
        assert 0 <= there.free <= there.device
        host = there.host
        assert host._sum == sum(host._tokens.values()) <= host.size
        elsewhere = {node for node in host._tokens if host.of(node) > host._on_device(node)}
        assert set(host._unused) == elsewhere


def test_a_part_that_came_back_and_stops_leaves_the_rest_of_its_copy_to_others() -> None:
    books = Accounts()
    books.start(50, 1, True, [(), (), (1, 0, 0), (), (), (0, 0, 0), (), ()])
    memory = books.memory
    for stream, keep in ((0, True), (2, False)):
        books.begin(stream, 19 if stream else 10, False)
        if not stream:
            books.begin(5, 0, False)
        memory.release(stream, books.running.pop(stream), lambda tokens: 0.0, keep=keep)
    # Stream 0 has a copy and no KV on the device; one page of it comes back, and is all that stays.
    memory.host.keep(0, 10)
    memory._evict(0, memory._resident[0])
    books.load_in_part(0, 1)
    books.partly.discard(0)
    memory.release(0, books.running.pop(0), lambda tokens: 0.0)
    books.books_balance()


TestAccounts = Accounts.TestCase
TestAccounts.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_what_was_written_while_a_stream_ran_is_not_copied_again() -> None:
    written: list[int] = []

    def store(tokens: int) -> float:
        written.append(tokens)
        return float(len(written))

    there = memory(200, 200)
    there.allocate(100)
    rows, tokens = np.array([1]), np.array([100])
    assert there.unwritten(rows, tokens).tolist() == [100]
    there.write(1, 60, store)
    assert there.unwritten(rows, tokens).tolist() == [40]
    there.release(1, 100, store)
    assert written == [60, 40]
    there.settle(2.0)
    there.allocate(200)
    assert there.match(1) == (0, 100)


def test_a_stream_stays_until_its_last_copy_is_there() -> None:
    there = memory(100, 100)
    there.allocate(60)
    there.write(1, 60, by(5.0))
    there.release(1, 60, by(9.0))
    assert there.settles_at() == 5.0
    assert there.free == 40
    there.settle(5.0)
    assert there.free == 100


def test_a_copy_that_the_host_dropped_has_to_be_written_again() -> None:
    there = memory(300, 100)
    there.allocate(180)
    there.write(1, 90, by(0.0))
    there.write(2, 90, by(0.0))
    assert there.unwritten(np.array([1, 2]), np.array([90, 90])).tolist() == [90, 0]


def test_without_a_host_nothing_waits_to_be_written() -> None:
    there = memory(100, 0)
    there.allocate(60)
    assert there.unwritten(np.array([1]), np.array([60])).tolist() == [0]


def test_copies_that_are_made_ahead_spare_an_eviction_its_wait() -> None:
    there = memory(100, 100, write_back=True)
    there.allocate(60)
    there.copies_ahead = True
    there.release(1, 60, by(0.0))
    there.settle(0.0)
    assert there.allocate(100) == 0
    assert (there.evicted, there.lost) == (60, 0)


def test_a_full_host_first_drops_copies_of_what_runs() -> None:
    """With write-back: the paused have all of the host."""
    there = memory(200, 100, write_back=True)
    there.copies_ahead = True
    for stream in (1, 2, 3):
        there.allocate(50)
        there.release(stream, 50, by(0.0))
        there.settle(0.0)
        if stream == 2:
            there.take(1, 50)  # it runs again, and has a copy
    assert [there.host.of(stream) for stream in (1, 2, 3)] == [0, 50, 50]
