"""All bodies under the same scripted decisions: the same phases, refusals and offers.

Prefetches in chunks have a file of their own. What a body by its nature does not do is declared in
`conforming.DONE`: the script says what it does instead, and fails if it does it all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from conforming import (
    SCARCE,
    Controls,
    Deed,
    ahead,
    assert_fails,
    does,
    does_it,
    does_not,
    each_body,
    on,
    phase,
    preempt,
    says,
    takes_memory_that_is_not_there,
    working,
)

from tokenflow_sgl.contract import (
    Cause,
    Decision,
    Mode,
    Phase,
    Preempt,
    Write,
)
from tokenflow_sgl.lifecycle import Missing

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


@does_it(Deed.WRITE)
def test_a_running_stream_is_written_before_it_is_preempted(rig) -> None:
    slot = rig.add(Phase.RUNNING)
    applied = rig.apply(working(write=(Write(slot, 8),), preempt=(preempt(slot),)))
    assert applied.written == 8
    assert applied.preempted == (preempt(slot),)


@does_not(Deed.WRITE)
def test_without_copies_nothing_is_written_before_a_pause(rig) -> None:
    slot = rig.add(Phase.RUNNING)
    assert not rig.body.writes, "so a policy asks for none"
    applied = rig.apply(working(write=(Write(slot, 8),), preempt=(preempt(slot),)))
    assert applied.refused == (Write(slot, 8),)
    assert applied.written == 0
    assert applied.preempted == (preempt(slot),)


@on("EngineRig")
def test_without_hicache_nothing_is_written_before_a_pause(rig) -> None:
    """A policy of one's own may ask for it all the same."""
    rig.writer.active = False
    test_without_copies_nothing_is_written_before_a_pause(rig)


@pytest.mark.parametrize("where", [Phase.WAITING, Phase.DRAINING, Phase.PAUSED])
def test_only_what_runs_is_written(rig, where) -> None:
    slot = rig.add(where)
    applied = rig.apply(working(write=(Write(slot, 8),)))
    assert (applied.written, applied.refused) == (0, (Write(slot, 8),))


# ---- restore ------------------------------------------------------------------------


@does_it(Deed.PREFETCH)
def test_a_prefetch_lands_and_its_stream_is_ready(rig) -> None:
    rig.add(Phase.RUNNING)
    slot = rig.add(Phase.PAUSED)
    applied = rig.apply(working(restore=(ahead(slot),)))
    assert applied.loading == (slot, 20)
    assert phase(rig, slot) is Phase.LOADING
    rig.land()
    assert phase(rig, slot) is Phase.PAUSED
    assert rig.phases.ready[slot]


@does_it(Deed.PREFETCH)
def test_one_prefetch_at_a_time(rig) -> None:
    rig.add(Phase.RUNNING)
    first, second = rig.add(Phase.PAUSED), rig.add(Phase.PAUSED)
    assert rig.apply(working(restore=(ahead(first), ahead(second)))).loading == (first, 20)
    assert rig.apply(working(restore=(ahead(second),))).loading is None
    assert phase(rig, second) is Phase.PAUSED
    rig.land()
    assert rig.apply(working(restore=(ahead(second),))).loading == (second, 20)


@does_it(Deed.PREFETCH)
def test_a_prefetch_waits_for_its_memory(make) -> None:
    rig = make(SCARCE)
    rig.add(Phase.RUNNING)
    slot = rig.add(Phase.PAUSED)
    assert rig.apply(working(restore=(ahead(slot),))).loading is None
    assert phase(rig, slot) is Phase.PAUSED
    assert not rig.phases.ready[slot]


@does_not(Deed.PREFETCH)
def test_without_prefetches_a_paused_stream_is_resumed_as_it_is(rig) -> None:
    rig.add(Phase.RUNNING)
    slot = rig.add(Phase.PAUSED)
    applied = rig.apply(working(restore=(ahead(slot),), run=(slot,)))
    assert applied.loading is None
    assert phase(rig, slot) is Phase.PAUSED
    assert rig.offered == [slot], "in the same pass"


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


EVERY_MODE = pytest.mark.parametrize("mode", [Mode.IDLE, Mode.FALLBACK, Mode.WORKING_SET])


@EVERY_MODE
def test_what_is_paused_and_hidden_is_offered_in_no_mode(rig, mode: Mode) -> None:
    paused, hides, waits = rig.add(Phase.PAUSED), rig.add(Phase.PAUSED), rig.add(Phase.WAITING)
    rig.apply(Decision(mode, run=(paused, hides, waits), hidden=frozenset({hides})))
    assert rig.offered == [paused, waits]


def with_a_hidden_newcomer(rig, mode: Mode) -> tuple[int, int]:
    """Two streams wait, of which the second is hidden."""
    waits, hides = rig.add(Phase.WAITING), rig.add(Phase.WAITING)
    rig.apply(Decision(mode, run=(waits, hides), hidden=frozenset({hides})))
    return waits, hides


def test_a_decision_hides_newcomers(rig) -> None:
    waits, _ = with_a_hidden_newcomer(rig, Mode.WORKING_SET)
    assert rig.offered == [waits]


@EVERY_MODE
def test_a_newcomer_that_is_hidden_is_offered_in_no_mode(rig, mode: Mode) -> None:
    waits, _ = with_a_hidden_newcomer(rig, mode)
    assert rig.offered == [waits]


def test_what_rests_is_preempted_though_the_engine_s_own_policy_decides(rig) -> None:
    slot, other = rig.add(Phase.RUNNING), rig.add(Phase.RUNNING)
    rig.apply(Decision(Mode.IDLE, preempt=(Preempt(slot, Cause.REST),), hidden=frozenset({slot})))
    assert rig.phases.is_in(slot, Phase.DRAINING, Phase.PAUSED)
    assert rig.phases.is_in(other, Phase.RUNNING)
    rig.land()
    assert rig.phases.is_in(slot, Phase.PAUSED)


# ---- what is special to one body -------------------------------------------------------


@on("DecodeRig")
def test_a_pause_needs_room_on_the_host(rig) -> None:
    """For what leaves, and for the longest that runs, which SGLang ends if it finds none."""
    first, second = rig.add(Phase.RUNNING), rig.add(Phase.RUNNING)
    rig.host = 50
    applied = rig.apply(working(preempt=(preempt(first), preempt(second))))
    assert applied.preempted == (preempt(first),)
    assert applied.refused == (preempt(second),)


@on("DecodeRig")
def test_a_stream_whose_kv_is_on_its_way_keeps_the_engine_busy(rig) -> None:
    rig.prefill(rig.add(Phase.RUNNING))
    rig.land()
    rig.add(Phase.WAITING)
    rig.apply(working())
    assert rig.offered == []


@on("DecodeRig")
@pytest.mark.parametrize("mode", [Mode.IDLE, Mode.FALLBACK])
def test_a_hidden_newcomer_keeps_its_place_in_sglang_s_queue(rig, mode: Mode) -> None:
    first, hides, last = rig.add(Phase.WAITING), rig.add(Phase.WAITING), rig.add(Phase.WAITING)
    rig.apply(Decision(mode, hidden=frozenset({hides})))
    assert rig.offered == [first, last]
    assert rig.arrivals.names == ["r0", "r1", "r2"]


@on("PlacedRig")
def test_a_paused_stream_keeps_its_pages(rig) -> None:
    slot = rig.add(Phase.RUNNING)
    rig.apply(working(preempt=(preempt(slot),)))
    rig.land()
    assert phase(rig, slot) is Phase.PAUSED
    assert rig.table.request(slot).kv.holds_kv


# ---- controls: a body that breaks one rule ------------------------------------------


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


def as_on_other_servers(verb: str) -> Callable[[pytest.MonkeyPatch, type], None]:
    """The body does as that of a server that prefills and decodes."""
    return lambda patch, body: patch.setattr(body, verb, getattr(body.__mro__[1], verb))


def loads_what_has_no_copy(patch: pytest.MonkeyPatch, body: type) -> None:
    patch.setattr(body, "accepts", lambda self, action: True)
    patch.setattr(body, "missing", lambda self, slot: Missing(20))
    patch.setattr(body, "load", lambda self, slot, tokens: tokens)


def accepts_every_write(patch: pytest.MonkeyPatch, body: type) -> None:
    accepts = body.accepts  # type: ignore[attr-defined]
    patch.setattr(
        body, "accepts", lambda self, action: isinstance(action, Write) or accepts(self, action)
    )
    patch.setattr(body, "write", lambda self, writes: 0)


def shows_sglang_what_is_hidden(patch: pytest.MonkeyPatch, body: type) -> None:
    offer = body.offer  # type: ignore[attr-defined]

    def offered(self, *given) -> None:
        offer(self, *given)
        self._away = frozenset()

    patch.setattr(body, "offer", offered)


def loses_pages(patch: pytest.MonkeyPatch, body: type) -> None:
    preempts = body.preempt  # type: ignore[attr-defined]

    def preempt(self, slots) -> None:
        for slot in slots:
            self._table.request(slot).kv.holds_kv = False
        preempts(self, slots)

    patch.setattr(body, "preempt", preempt)


CONTROLS: Controls = {
    "preempts in the middle of a prefill": (
        does("accepts", lambda self, action: True),
        test_a_stream_in_the_middle_of_its_prefill_stays,
    ),
    "hides nothing": (
        hides_nothing,
        partial(test_what_is_paused_and_hidden_is_offered_in_no_mode, mode=Mode.IDLE),
    ),
    "hides no newcomer": (hides_nothing, test_a_decision_hides_newcomers),
    "hides no newcomer where SGLang decides": (
        hides_nothing,
        partial(test_a_newcomer_that_is_hidden_is_offered_in_no_mode, mode=Mode.IDLE),
    ),
    "shows SGLang what is hidden": (
        shows_sglang_what_is_hidden,
        partial(test_a_hidden_newcomer_keeps_its_place_in_sglang_s_queue, mode=Mode.FALLBACK),
    ),
    "refuses all": (
        does("accepts", lambda self, action: False),
        test_a_preempted_stream_drains_and_is_paused,
    ),
    "writes nothing": (
        does("write", lambda self, writes: 0),
        test_a_running_stream_is_written_before_it_is_preempted,
    ),
    "accepts writes though it has no copies": (
        accepts_every_write,
        test_without_copies_nothing_is_written_before_a_pause,
    ),
    "accepts writes without HiCache": (
        accepts_every_write,
        test_without_hicache_nothing_is_written_before_a_pause,
    ),
    "asks for copies though it has none": (
        says("writes", True),
        test_without_copies_nothing_is_written_before_a_pause,
    ),
    "preempts nothing": (
        does("preempt", lambda self, slots: None),
        test_a_preempted_stream_drains_and_is_paused,
    ),
    "restores nothing": (
        does("load", lambda self, slot, tokens: 0),
        test_a_prefetch_lands_and_its_stream_is_ready,
    ),
    "restores though it has no copies": (
        loads_what_has_no_copy,
        test_without_prefetches_a_paused_stream_is_resumed_as_it_is,
    ),
    "pauses though the host is full": (
        as_on_other_servers("accepts"),
        test_a_pause_needs_room_on_the_host,
    ),
    "forgets what is on its way": (
        as_on_other_servers("busy"),
        test_a_stream_whose_kv_is_on_its_way_keeps_the_engine_busy,
    ),
    "loses the pages of what it pauses": (loses_pages, test_a_paused_stream_keeps_its_pages),
    "restores where there is no room": (
        takes_memory_that_is_not_there,
        test_a_prefetch_waits_for_its_memory,
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


@each_body(CONTROLS)
def test_a_body_that_breaks_one_rule_fails(make, monkeypatch, broken) -> None:
    breaks, script = CONTROLS[broken]
    assert_fails(breaks, script, make, monkeypatch)
