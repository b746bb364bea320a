"""The bodies that prefetch, under the same scripted decisions where KV comes in chunks."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from conforming import (
    RESERVE,
    Break,
    Controls,
    Deed,
    assert_fails,
    does,
    does_it,
    each_body,
    phase,
    preempt,
    takes_memory_that_is_not_there,
    working,
)
from lifecycle_bodies import EngineRig, Rig

from tokenflow_sgl.contract import (
    Decision,
    Mode,
    Phase,
    Restore,
    When,
)


def chunked(slot: int, part: int = 8) -> Restore:
    return Restore(slot, when=When.AHEAD, part=part)


def half_loaded(make, *others: Phase) -> tuple[Rig, int]:
    """A rig with a running stream, others, and a stream of which 12 tokens of 20 have landed."""
    rig = make(RESERVE + 12)
    rig.add(Phase.RUNNING)
    slot = rig.add(Phase.PAUSED)
    for other in others:
        rig.add(other)
    assert rig.apply(working(restore=(chunked(slot),))).loading == (slot, 12)
    rig.land()
    assert rig.held == 12
    return rig, slot


@does_it(Deed.PREFETCH)
def test_a_chunk_lands_while_there_is_no_room_for_the_next(make) -> None:
    rig, slot = half_loaded(make)
    assert phase(rig, slot) is Phase.LOADING
    applied = rig.apply(working(restore=(chunked(slot),), run=(slot,)))
    assert (applied.loading, applied.refused) == (None, ())
    assert rig.offered == []
    assert not rig.phases.ready[slot]


@does_it(Deed.PREFETCH)
def test_the_rest_follows_into_what_becomes_free(make) -> None:
    rig, slot = half_loaded(make)
    rig.free(RESERVE + 8)
    assert rig.apply(working(restore=(chunked(slot),))).loading == (slot, 8)
    rig.land()
    assert phase(rig, slot) is Phase.PAUSED
    assert rig.phases.ready[slot]
    assert rig.held == 0


@does_it(Deed.PREFETCH)
def test_a_chunk_is_no_smaller_than_it_is_worth(make) -> None:
    rig = make(RESERVE + 7)
    rig.add(Phase.RUNNING)
    slot = rig.add(Phase.PAUSED)
    assert rig.apply(working(restore=(chunked(slot, part=8),))).loading is None
    assert phase(rig, slot) is Phase.PAUSED
    assert rig.apply(working(restore=(chunked(slot, part=7),))).loading == (slot, 7)


@does_it(Deed.PREFETCH)
def test_without_chunks_a_stream_waits_for_all_of_its_memory(make) -> None:
    rig = make(RESERVE + 12)
    rig.add(Phase.RUNNING)
    slot = rig.add(Phase.PAUSED)
    assert rig.apply(working(restore=(chunked(slot, part=0),))).loading is None
    assert rig.held == 0


@does_it(Deed.PREFETCH)
def test_a_stream_behind_the_one_that_waits_waits_too(make) -> None:
    rig, slot = half_loaded(make, Phase.PAUSED)
    behind = slot + 1
    rig.free(RESERVE + 7)
    both = (chunked(slot, part=8), chunked(behind, part=1))
    assert rig.apply(working(restore=both)).loading is None


@does_it(Deed.PREFETCH)
def test_a_more_urgent_stream_goes_before_one_that_is_half_loaded(make) -> None:
    rig, slot = half_loaded(make, Phase.PAUSED)
    urgent = slot + 1
    rig.free(RESERVE + 24)
    both = (chunked(urgent), chunked(slot, part=9))
    assert rig.apply(working(restore=both)).loading == (urgent, 20)
    assert rig.held == 12


@does_it(Deed.PREFETCH)
@pytest.mark.parametrize("mode", [Mode.WORKING_SET, Mode.IDLE, Mode.FALLBACK])
def test_what_is_no_longer_wanted_is_given_up(make, mode) -> None:
    rig, slot = half_loaded(make)
    rig.apply(Decision(mode, run=(slot,)))
    assert phase(rig, slot) is Phase.PAUSED
    assert not rig.phases.ready[slot]
    assert rig.held == 0
    assert rig.offered == [slot]


@does_it(Deed.PREFETCH)
def test_a_chunk_that_is_on_its_way_is_not_given_up(make) -> None:
    rig = make(RESERVE + 12)
    rig.add(Phase.RUNNING)
    slot = rig.add(Phase.PAUSED)
    rig.apply(working(restore=(chunked(slot),)))
    rig.apply(working(run=(slot,)))
    assert phase(rig, slot) is Phase.LOADING
    assert rig.offered == []
    rig.land()
    rig.apply(working(run=(slot,)))
    assert rig.offered == [slot]


@does_it(Deed.PREFETCH)
def test_running_streams_need_their_memory_before_it(make) -> None:
    rig, slot = half_loaded(make)
    rig.free(4)
    rig.apply(working(restore=(chunked(slot),)))
    assert phase(rig, slot) is Phase.LOADING, "four steps of one stream fit"
    rig.free(3)
    rig.apply(working(restore=(chunked(slot),)))
    assert phase(rig, slot) is Phase.PAUSED
    assert rig.held == 0


@does_it(Deed.PREFETCH)
def test_a_stream_is_aborted_half_loaded(make) -> None:
    rig, slot = half_loaded(make, Phase.PAUSED)
    rig.abort(slot)
    assert rig.held == 0
    other = slot + 1
    rig.free(RESERVE + 20)
    assert rig.apply(working(restore=(chunked(slot), chunked(other)))).loading == (other, 20)


def test_a_chunk_of_an_aborted_stream_lands() -> None:
    """In the engine: no stream of the simulator is aborted in the middle of a copy."""
    rig = EngineRig(RESERVE + 12)
    rig.add(Phase.RUNNING)
    slot = rig.add(Phase.PAUSED)
    rig.apply(working(restore=(chunked(slot),)))
    rig.abort(slot)
    rig.land()
    assert rig.held == 0
    assert not rig.phases.parts


@does_it(Deed.PREFETCH)
def test_what_a_preemption_frees_is_loaded_into(make) -> None:
    rig, slot = half_loaded(make)
    victim = rig.add(Phase.RUNNING)
    rig.free(RESERVE + 8)
    go_on = (chunked(slot),)
    assert rig.apply(working(preempt=(preempt(victim),), restore=go_on)).loading is None
    rig.land()
    assert rig.apply(working(restore=go_on)).loading == (slot, 8)


# ---- controls: a body that breaks one rule ------------------------------------------

RULE = "tokenflow_sgl.lifecycle.prefetch"


def chunks(rule: Callable[[int, int, int, int], int]) -> Break:
    """Another rule for how much is loaded, in both bodies."""
    return lambda patch, body: patch.setattr(sys.modules[RULE], "chunk", rule)


CONTROLS: Controls = {
    "loads a chunk where there is no room": (
        takes_memory_that_is_not_there,
        test_a_chunk_lands_while_there_is_no_room_for_the_next,
    ),
    "loads a chunk that is too small": (
        chunks(lambda missing, room, part, page: min(missing, room)),
        test_a_chunk_is_no_smaller_than_it_is_worth,
    ),
    "loads in chunks though it should not": (
        chunks(lambda missing, room, part, page: min(missing, room)),
        test_without_chunks_a_stream_waits_for_all_of_its_memory,
    ),
    "loads in no chunks": (
        chunks(lambda missing, room, part, page: missing if missing <= room else 0),
        test_the_rest_follows_into_what_becomes_free,
    ),
    "gives nothing up": (
        does("give_up", lambda self, slot: None),
        test_what_is_no_longer_wanted_is_given_up,
    ),
    "gives up what is on its way": (
        does("copying", lambda self, slot: False),
        test_a_chunk_that_is_on_its_way_is_not_given_up,
    ),
    "keeps what running streams need": (
        does("give_up", lambda self, slot: None),
        test_running_streams_need_their_memory_before_it,
    ),
    "loads nothing into what was freed": (
        does("load", lambda self, slot, tokens: 0),
        test_what_a_preemption_frees_is_loaded_into,
    ),
}


@each_body(CONTROLS)
def test_a_body_that_breaks_one_rule_fails(make, monkeypatch, broken) -> None:
    breaks, script = CONTROLS[broken]
    assert_fails(breaks, script, make, monkeypatch)
