"""Both bodies under the same scripted decisions: the same phases, refusals and offers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import pytest
from lifecycle_bodies import EngineRig, Rig, SimRig

from tokenflow_sgl.contract import (
    Cause,
    Decision,
    Mode,
    Phase,
    Place,
    Preempt,
    Restore,
    Way,
    When,
    Write,
)
from tokenflow_sgl.offload import DeviceRoom

AMPLE, SCARCE = 1000, 60
"""Free tokens: for everything, and for less than one prefetch beside a running stream."""
RESERVE = 48
"""Tokens that prefetches leave to one running stream and one more."""


@pytest.fixture(params=[SimRig, EngineRig], ids=["simulator", "engine"])
def make(request):
    return request.param


@pytest.fixture
def rig(make) -> Rig:
    return make(AMPLE)


def working(**actions) -> Decision:
    return Decision(Mode.WORKING_SET, **actions)


def preempt(slot: int) -> Preempt:
    return Preempt(slot, Cause.EXCHANGE)


def ahead(slot: int) -> Restore:
    return Restore(slot, when=When.AHEAD)


def phase(rig: Rig, slot: int) -> Phase:
    return Phase(int(rig.phases.phase[slot]))


# ---- preempt ------------------------------------------------------------------------


def test_a_preempted_stream_drains_and_is_paused(rig) -> None:
    stays, goes = rig.add(Phase.RUNNING), rig.add(Phase.RUNNING)
    applied = rig.apply(working(preempt=(preempt(goes),)))
    assert applied.preempted == (preempt(goes),)
    assert applied.refused == ()
    assert phase(rig, goes) is Phase.DRAINING
    rig.land()
    assert phase(rig, goes) is Phase.PAUSED
    assert phase(rig, stays) is Phase.RUNNING


def test_a_stream_is_preempted_once(rig) -> None:
    slot = rig.add(Phase.RUNNING)
    applied = rig.apply(working(preempt=(preempt(slot), preempt(slot))))
    assert applied.preempted == (preempt(slot),)
    assert applied.refused == (preempt(slot),)


def test_a_stream_in_the_middle_of_its_prefill_stays(rig) -> None:
    slot = rig.add(Phase.RUNNING)
    rig.prefill(slot)
    assert rig.apply(working(preempt=(preempt(slot),))).refused == (preempt(slot),)
    assert phase(rig, slot) is Phase.RUNNING


@pytest.mark.parametrize("where", [Phase.WAITING, Phase.DRAINING, Phase.PAUSED])
def test_only_what_runs_is_preempted(rig, where) -> None:
    slot = rig.add(where)
    assert rig.apply(working(preempt=(preempt(slot),))).refused == (preempt(slot),)
    assert phase(rig, slot) is where


def test_a_stream_that_is_aborted_between_decision_and_deed_is_passed_over(rig) -> None:
    gone, other = rig.add(Phase.RUNNING), rig.add(Phase.RUNNING)
    rig.abort(gone)
    applied = rig.apply(working(preempt=(preempt(gone), preempt(other))))
    assert applied.preempted == (preempt(other),)
    assert applied.refused == (preempt(gone),)


@pytest.mark.parametrize("slot", [-1, 40, 1000])
def test_actions_on_streams_that_never_were_are_passed_over(rig, slot) -> None:
    rig.add(Phase.RUNNING)
    actions = (preempt(slot), Write(slot, 8), ahead(slot))
    applied = rig.apply(
        working(
            preempt=actions[:1], write=actions[1:2], restore=actions[2:], run=(slot,), admit=(slot,)
        )
    )
    assert set(applied.refused) == set(actions)
    assert rig.offered == []


# ---- write --------------------------------------------------------------------------


def test_a_running_stream_is_written_before_it_is_preempted(rig) -> None:
    slot = rig.add(Phase.RUNNING)
    applied = rig.apply(working(write=(Write(slot, 8),), preempt=(preempt(slot),)))
    assert applied.written == 8
    assert applied.preempted == (preempt(slot),)


@pytest.mark.parametrize("where", [Phase.WAITING, Phase.DRAINING, Phase.PAUSED])
def test_only_what_runs_is_written(rig, where) -> None:
    slot = rig.add(where)
    applied = rig.apply(working(write=(Write(slot, 8),)))
    assert (applied.written, applied.refused) == (0, (Write(slot, 8),))


# ---- restore ------------------------------------------------------------------------


def test_a_prefetch_lands_and_its_stream_is_ready(rig) -> None:
    rig.add(Phase.RUNNING)
    slot = rig.add(Phase.PAUSED)
    applied = rig.apply(working(restore=(ahead(slot),)))
    assert applied.loading == (slot, 20)
    assert phase(rig, slot) is Phase.LOADING
    rig.land()
    assert phase(rig, slot) is Phase.PAUSED
    assert rig.phases.ready[slot]


def test_one_prefetch_at_a_time(rig) -> None:
    rig.add(Phase.RUNNING)
    first, second = rig.add(Phase.PAUSED), rig.add(Phase.PAUSED)
    assert rig.apply(working(restore=(ahead(first), ahead(second)))).loading == (first, 20)
    assert rig.apply(working(restore=(ahead(second),))).loading is None
    assert phase(rig, second) is Phase.PAUSED
    rig.land()
    assert rig.apply(working(restore=(ahead(second),))).loading == (second, 20)


def test_a_prefetch_waits_for_its_memory(make) -> None:
    rig = make(SCARCE)
    rig.add(Phase.RUNNING)
    slot = rig.add(Phase.PAUSED)
    assert rig.apply(working(restore=(ahead(slot),))).loading is None
    assert phase(rig, slot) is Phase.PAUSED
    assert not rig.phases.ready[slot]


# ---- restore in chunks --------------------------------------------------------------


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


def test_a_chunk_lands_while_there_is_no_room_for_the_next(make) -> None:
    rig, slot = half_loaded(make)
    assert phase(rig, slot) is Phase.LOADING
    applied = rig.apply(working(restore=(chunked(slot),), run=(slot,)))
    assert (applied.loading, applied.refused) == (None, ())
    assert rig.offered == []
    assert not rig.phases.ready[slot]


def test_the_rest_follows_into_what_becomes_free(make) -> None:
    rig, slot = half_loaded(make)
    rig.free(RESERVE + 8)
    assert rig.apply(working(restore=(chunked(slot),))).loading == (slot, 8)
    rig.land()
    assert phase(rig, slot) is Phase.PAUSED
    assert rig.phases.ready[slot]
    assert rig.held == 0


def test_a_chunk_is_no_smaller_than_it_is_worth(make) -> None:
    rig = make(RESERVE + 7)
    rig.add(Phase.RUNNING)
    slot = rig.add(Phase.PAUSED)
    assert rig.apply(working(restore=(chunked(slot, part=8),))).loading is None
    assert phase(rig, slot) is Phase.PAUSED
    assert rig.apply(working(restore=(chunked(slot, part=7),))).loading == (slot, 7)


def test_without_chunks_a_stream_waits_for_all_of_its_memory(make) -> None:
    rig = make(RESERVE + 12)
    rig.add(Phase.RUNNING)
    slot = rig.add(Phase.PAUSED)
    assert rig.apply(working(restore=(chunked(slot, part=0),))).loading is None
    assert rig.held == 0


def test_a_stream_behind_the_one_that_waits_waits_too(make) -> None:
    rig, slot = half_loaded(make, Phase.PAUSED)
    behind = slot + 1
    rig.free(RESERVE + 7)
    both = (chunked(slot, part=8), chunked(behind, part=1))
    assert rig.apply(working(restore=both)).loading is None


def test_a_more_urgent_stream_goes_before_one_that_is_half_loaded(make) -> None:
    rig, slot = half_loaded(make, Phase.PAUSED)
    urgent = slot + 1
    rig.free(RESERVE + 24)
    both = (chunked(urgent), chunked(slot, part=9))
    assert rig.apply(working(restore=both)).loading == (urgent, 20)
    assert rig.held == 12


@pytest.mark.parametrize("mode", [Mode.WORKING_SET, Mode.IDLE, Mode.FALLBACK])
def test_what_is_no_longer_wanted_is_given_up(make, mode) -> None:
    rig, slot = half_loaded(make)
    rig.apply(Decision(mode, run=(slot,)))
    assert phase(rig, slot) is Phase.PAUSED
    assert not rig.phases.ready[slot]
    assert rig.held == 0
    assert rig.offered == [slot]


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


def test_running_streams_need_their_memory_before_it(make) -> None:
    rig, slot = half_loaded(make)
    rig.free(4)
    rig.apply(working(restore=(chunked(slot),)))
    assert phase(rig, slot) is Phase.LOADING, "four steps of one stream fit"
    rig.free(3)
    rig.apply(working(restore=(chunked(slot),)))
    assert phase(rig, slot) is Phase.PAUSED
    assert rig.held == 0


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


def test_what_a_preemption_frees_is_loaded_into(make) -> None:
    rig, slot = half_loaded(make)
    victim = rig.add(Phase.RUNNING)
    rig.free(RESERVE + 8)
    go_on = (chunked(slot),)
    assert rig.apply(working(preempt=(preempt(victim),), restore=go_on)).loading is None
    rig.land()
    assert rig.apply(working(restore=go_on)).loading == (slot, 8)


# ---- restore: phases ----------------------------------------------------------------


@pytest.mark.parametrize("where", [Phase.WAITING, Phase.RUNNING, Phase.DRAINING])
def test_only_what_is_paused_is_restored(rig, where) -> None:
    slot = rig.add(where)
    assert rig.apply(working(restore=(ahead(slot),))).refused == (ahead(slot),)


def test_a_stream_is_not_restored_in_the_pass_that_preempts_it(rig) -> None:
    slot = rig.add(Phase.RUNNING)
    applied = rig.apply(working(preempt=(preempt(slot),), restore=(ahead(slot),), run=(slot,)))
    assert applied.preempted == (preempt(slot),)
    assert applied.refused == (ahead(slot),)
    assert rig.offered == []


@pytest.mark.parametrize(
    "asked",
    [
        lambda slot: Restore(slot, Way.TOKENS, When.AHEAD, split=4),
        lambda slot: Restore(slot, Way.LAYERS, When.AHEAD, split=1),
        lambda slot: Restore(slot, Way.TOKENS, split=4),
        lambda slot: Place(slot, (0, 1)),
    ],
)
def test_what_no_body_can_do_yet_is_refused_and_the_stream_resumes(rig, asked) -> None:
    slot = rig.add(Phase.PAUSED)
    action = asked(slot)
    placed = (action,) if isinstance(action, Place) else ()
    restored = (action,) if isinstance(action, Restore) else ()
    applied = rig.apply(working(place=placed, restore=restored, run=(slot,)))
    assert applied.refused == (action,)
    assert rig.offered == [slot]


# ---- offer --------------------------------------------------------------------------


def test_the_decision_orders_what_is_offered_and_holds_the_rest_back(rig) -> None:
    paused = rig.add(Phase.PAUSED)
    rig.add(Phase.WAITING)
    second = rig.add(Phase.WAITING)
    running = rig.add(Phase.RUNNING)
    rig.apply(working(run=(second, running, paused)))
    assert rig.offered == [second, paused]


@pytest.mark.parametrize("mode", [Mode.IDLE, Mode.FALLBACK])
def test_without_a_decision_all_are_offered_the_paused_ones_first(rig, mode) -> None:
    early, late, waiting = rig.add(Phase.PAUSED), rig.add(Phase.PAUSED), rig.add(Phase.WAITING)
    rig.add(Phase.RUNNING)
    rig.apply(Decision(mode, preempt=(preempt(0),)))
    assert rig.offered == [early, late, waiting]


def test_a_policy_that_forgets_all_streams_does_not_idle_the_engine(rig) -> None:
    paused, waiting = rig.add(Phase.PAUSED), rig.add(Phase.WAITING)
    rig.apply(working())
    assert rig.offered == [paused, waiting]


def test_a_policy_that_says_until_when_may(rig) -> None:
    rig.add(Phase.PAUSED)
    rig.apply(working(until=99.0))
    assert rig.offered == []


def test_a_busy_engine_may_be_left_alone(rig) -> None:
    rig.add(Phase.RUNNING)
    rig.add(Phase.WAITING)
    rig.apply(working())
    assert rig.offered == []


def test_newcomers_join_the_working_set(rig) -> None:
    joins, waits = rig.add(Phase.WAITING), rig.add(Phase.WAITING)
    rig.apply(working(admit=(joins,), run=(joins,)))
    assert rig.phases.admitted[joins]
    assert not rig.phases.admitted[waits]


@pytest.mark.parametrize("mode", [Mode.IDLE, Mode.FALLBACK, Mode.WORKING_SET])
def test_what_is_hidden_is_offered_in_no_mode(rig, mode: Mode) -> None:
    paused, hides = rig.add(Phase.PAUSED), rig.add(Phase.PAUSED)
    waits, waits_too = rig.add(Phase.WAITING), rig.add(Phase.WAITING)
    every = (paused, hides, waits, waits_too)
    rig.apply(Decision(mode, run=every, hidden=frozenset({hides, waits_too})))
    assert rig.offered == [paused, waits]


def test_what_rests_is_preempted_though_the_engine_s_own_policy_decides(rig) -> None:
    slot, other = rig.add(Phase.RUNNING), rig.add(Phase.RUNNING)
    rig.apply(Decision(Mode.IDLE, preempt=(Preempt(slot, Cause.REST),), hidden=frozenset({slot})))
    assert rig.phases.is_in(slot, Phase.DRAINING, Phase.PAUSED)
    assert rig.phases.is_in(other, Phase.RUNNING)
    rig.land()
    assert rig.phases.is_in(slot, Phase.PAUSED)


# ---- controls: a body that breaks one rule ------------------------------------------

Break = Callable[[pytest.MonkeyPatch, type], None]
RULE = "tokenflow_sgl.lifecycle.prefetch"


def does(verb: str, deed: Callable[..., Any]) -> Break:
    return lambda patch, body: patch.setattr(body, verb, deed)


def says(name: str, value: bool) -> Break:
    return lambda patch, body: patch.setattr(body, name, property(lambda self: value))


def takes_memory_that_is_not_there(patch: pytest.MonkeyPatch, body: type) -> None:
    patch.setattr(body, "room", property(lambda self: DeviceRoom(10**6, 0, 0, 1)))


def chunks(rule: Callable[[int, int, int, int], int]) -> Break:
    """Another rule for how much is loaded, in both bodies."""
    return lambda patch, body: patch.setattr(sys.modules[RULE], "chunk", rule)


def offers_in_the_order_of_arrival(patch: pytest.MonkeyPatch, body: type) -> None:
    offer = body.offer  # type: ignore[attr-defined]
    patch.setattr(
        body,
        "offer",
        lambda self, slots, *rest: offer(self, slots and sorted(slots), *rest),
    )


def hides_nothing(patch: pytest.MonkeyPatch, body: type) -> None:
    offer = body.offer  # type: ignore[attr-defined]
    patch.setattr(body, "offer", lambda self, *given: offer(self, *given[:2], frozenset()))


CONTROLS: dict[str, tuple[Break, Callable[..., None]]] = {
    "preempts in the middle of a prefill": (
        does("accepts", lambda self, action: True),
        test_a_stream_in_the_middle_of_its_prefill_stays,
    ),
    "places": (
        does("accepts", lambda self, action: True),
        partial(
            test_what_no_body_can_do_yet_is_refused_and_the_stream_resumes,
            asked=lambda slot: Place(slot, (0, 1)),
        ),
    ),
    "restores by layer": (
        does("accepts", lambda self, action: True),
        partial(
            test_what_no_body_can_do_yet_is_refused_and_the_stream_resumes,
            asked=lambda slot: Restore(slot, Way.LAYERS, split=1),
        ),
    ),
    "hides nothing": (
        hides_nothing,
        partial(test_what_is_hidden_is_offered_in_no_mode, mode=Mode.IDLE),
    ),
    "refuses all": (
        does("accepts", lambda self, action: False),
        test_a_running_stream_is_written_before_it_is_preempted,
    ),
    "writes nothing": (
        does("write", lambda self, writes: 0),
        test_a_running_stream_is_written_before_it_is_preempted,
    ),
    "preempts nothing": (
        does("preempt", lambda self, slots: None),
        test_a_preempted_stream_drains_and_is_paused,
    ),
    "restores nothing": (
        does("load", lambda self, slot, tokens: 0),
        test_a_prefetch_lands_and_its_stream_is_ready,
    ),
    "restores where there is no room": (
        takes_memory_that_is_not_there,
        test_a_prefetch_waits_for_its_memory,
    ),
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
    "restores two at a time": (says("prefetching", False), test_one_prefetch_at_a_time),
    "offers in another order": (
        offers_in_the_order_of_arrival,
        test_the_decision_orders_what_is_offered_and_holds_the_rest_back,
    ),
    "is always busy": (
        says("busy", True),
        test_a_policy_that_forgets_all_streams_does_not_idle_the_engine,
    ),
    "is never busy": (says("busy", False), test_a_busy_engine_may_be_left_alone),
}


@pytest.mark.parametrize("broken", CONTROLS)
def test_a_body_that_breaks_one_rule_fails(make, monkeypatch, broken) -> None:
    breaks, script = CONTROLS[broken]
    breaks(monkeypatch, type(make(AMPLE).body))
    bodies = {"make": make, "rig": make(AMPLE), "mode": Mode.WORKING_SET}
    wanted = {name: body for name, body in bodies.items() if name in signature(script).parameters}
    with pytest.raises(AssertionError):
        script(**wanted)
