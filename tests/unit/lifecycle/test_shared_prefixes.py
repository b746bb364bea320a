"""What streams share with those that hold KV, against a plain count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.lifecycle import Phases, SharedPrefixes
from tokenflow_sgl.lifecycle.shared_prefixes import HEAD, LOOKS, Path


class Prompts:
    """Slots with prompts as strings: each letter is a stretch of ten tokens."""

    def __init__(self, *prompts: str) -> None:
        self.phases = Phases(1)
        self.phases.grow(max(len(prompts), 1))
        self.prompts: dict[int, str] = {}
        self.begun: set[int] = set()
        self.asked: list[int] = []
        self.order: list[int] = []
        self.known = SharedPrefixes(self.phases, self.path)
        for slot, prompt in enumerate(prompts):
            self.arrive(slot, prompt)

    def arrive(self, slot: int, prompt: str) -> None:
        self.phases.arrive(slot, 0.0)
        self.prompts[slot] = prompt
        self.order.append(slot)

    def leave(self, slot: int) -> None:
        self.phases.leave(slot)
        self.begun.discard(slot)
        self.order.remove(slot)
        del self.prompts[slot]

    def move(self, phase: Phase, *slots: int) -> None:
        """Streams that run have generated something, too."""
        for slot in slots:
            self.phases.move(slot, phase, 0.0)
        self.begun.update(slots)

    def path(self, slot: int) -> Path:
        self.asked.append(slot)
        prompt = self.prompts[slot]
        return [prompt[: at + 1] for at in range(len(prompt))], [10] * len(prompt)

    def shared(self) -> list[int] | None:
        begun = np.array([slot in self.begun for slot in self.order], dtype=np.bool_)
        found = self.known.of(np.array(self.order, dtype=np.int64), begun)
        return None if found is None else found.tolist()

    def counted(self) -> list[int]:
        """By the definition."""
        holders = [
            slot
            for slot in self.order
            if slot in self.begun
            and self.phases.phase[slot] in (Phase.RUNNING.value, Phase.DRAINING.value)
        ]
        return [
            max(
                (10 * _common(self.prompts[s], self.prompts[o]) for o in holders if o != s),
                default=0,
            )
            for s in self.order
        ]


def _common(one: str, other: str) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def test_what_a_running_stream_has_is_shared_with_all_that_begin_alike() -> None:
    streams = Prompts("abcd", "abce", "abx", "zz")
    assert streams.shared() is None, "none of them holds anything"
    streams.move(Phase.RUNNING, 0)
    assert streams.shared() == [0, 30, 20, 0], "its own KV it shares with none yet"
    streams.move(Phase.RUNNING, 2)
    assert streams.shared() == [20, 30, 20, 0]
    streams.move(Phase.DRAINING, 0)
    assert streams.shared() == [20, 30, 20, 0]
    streams.move(Phase.PAUSED, 0)
    assert streams.shared() == [20, 20, 0, 0]
    streams.leave(2)
    assert streams.shared() is None


def test_a_prefill_under_way_holds_nothing_for_others_yet() -> None:
    streams = Prompts("ab", "ab")
    streams.phases.move(0, Phase.RUNNING, 0.0)
    assert streams.shared() is None
    streams.begun.add(0)
    assert streams.shared() == [0, 20], "though its phase is the same"


def test_each_prompt_is_named_once_and_a_few_in_a_pass() -> None:
    streams = Prompts(*["ab"] * (LOOKS + 3))
    streams.move(Phase.RUNNING, LOOKS + 2)
    shared = streams.shared()
    assert streams.asked == [LOOKS + 2, *range(LOOKS - 1)], "first those that hold KV"
    assert shared == [20] * (LOOKS - 1) + [0] * 4
    assert streams.shared() == [20] * (LOOKS + 2) + [0]
    streams.shared()
    assert len(streams.asked) == LOOKS + 3


def test_the_end_of_a_long_queue_is_not_looked_at() -> None:
    streams = Prompts(*["ab"] * (HEAD + 20))
    streams.move(Phase.RUNNING, 0)
    for _ in range(HEAD):
        streams.shared()
    assert sorted(streams.asked) == list(range(HEAD + 1))


def test_who_comes_into_a_slot_is_another() -> None:
    streams = Prompts("ab", "ab")
    streams.move(Phase.RUNNING, 0)
    assert streams.shared() == [0, 20]
    streams.leave(1)
    streams.arrive(1, "xy")
    assert streams.shared() is None
    streams.leave(1)
    streams.arrive(1, "ay")
    assert streams.shared() == [0, 10]


def test_a_policy_cannot_write_what_the_next_pass_is_given() -> None:
    streams = Prompts("ab", "ab")
    streams.move(Phase.RUNNING, 0)
    order = np.array(streams.order, dtype=np.int64)
    begun = np.array([True, False])
    found = streams.known.of(order, begun)
    assert found is not None
    with pytest.raises(ValueError, match="read-only"):
        found[1] = 99
    again = streams.known.of(order, begun)
    assert again is not None
    assert again.tolist() == [0, 20]


@given(data=st.data())
def test_it_is_as_the_definition_says(data) -> None:
    prompts = st.text("ab", max_size=5)
    streams = Prompts(*data.draw(st.lists(prompts, min_size=1, max_size=8)))
    free: list[int] = []
    for _ in range(data.draw(st.integers(1, 12))):
        deed = data.draw(st.sampled_from(["move", "leave", "arrive", "look"]))
        if deed == "arrive" and free:
            streams.arrive(free.pop(), data.draw(prompts))
        elif deed == "look" or not streams.order:
            assert (streams.shared() or [0] * len(streams.order)) == streams.counted()
        elif deed == "leave":
            slot = data.draw(st.sampled_from(streams.order))
            streams.leave(slot)
            free.append(slot)
        else:
            slot = data.draw(st.sampled_from(streams.order))
            streams.move(data.draw(st.sampled_from(list(Phase)[1:])), slot)
    assert (streams.shared() or [0] * len(streams.order)) == streams.counted()


def test_stretches_of_streams_that_left_are_forgotten() -> None:
    streams = Prompts("abc")
    streams.shared()
    for turn in range(2000):
        streams.leave(0)
        streams.arrive(0, chr(300 + turn) + "bc")
        streams.shared()
    assert len(streams.known._name) < 10
    assert set(streams.known._place) == {chr(2299), chr(2299) + "b", chr(2299) + "bc"}


@pytest.mark.parametrize("count", [1500])
def test_many_stretches_find_room(count) -> None:
    streams = Prompts("".join(map(chr, range(300, 300 + count))), chr(300))
    streams.move(Phase.RUNNING, 0)
    assert streams.shared() == [0, 10]
