"""The table of live streams."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tracked import Request, running, track

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.contract.lengths import CERTAIN
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.policy.predictors import LimitLengths
from tokenflow_sgl.qos import NOTICEABLE_STALL
from tokenflow_sgl.qos.classes import QosClass

PRODUCING = (Phase.RUNNING, Phase.DRAINING)


@pytest.fixture
def table() -> StreamTable[Request]:
    return StreamTable(LimitLengths(), capacity=4)


def test_a_new_stream_waits_with_what_it_asked_for(table) -> None:
    request = Request()
    assert request not in table
    slot = track(table, request)
    assert request in table
    assert len(table) == 1
    assert table.slot(request) == slot
    assert table.request(slot) is request
    assert table.qos_class(slot) == "reading"
    seen = table.streams(())
    assert seen.slot.tolist() == [slot]
    assert seen.phase.tolist() == [Phase.WAITING]
    assert seen.arrival.tolist() == seen.next_due.tolist() == [1.0]
    assert seen.rate.tolist() == [10.0]
    assert (seen.prompt.tolist(), seen.generated.tolist()) == ([7], [0])
    assert seen.expected.tolist() == [50.0]
    assert seen.since.tolist() == [1.5]
    assert (seen.admitted.tolist(), seen.preemptible.tolist()) == ([False], [False])


def test_streams_that_are_held_nowhere_are_found_in_order_of_arrival(table) -> None:
    first, second, third = (running(table) for _ in range(3))
    assert table.lost({first, second, third, Request()}) == []
    assert table.lost({second}) == [first, third]


def test_a_move_is_remembered_with_its_time(table) -> None:
    request = Request()
    slot = track(table, request)
    table.move(request, Phase.PAUSED, 9.0)
    assert table.requests(Phase.PAUSED) == [request]
    assert table.requests(Phase.WAITING) == []
    assert table.phases.since[slot] == 9.0


def test_a_forgotten_stream_leaves_nothing(table) -> None:
    request = running(table)
    slot = table.slot(request)
    table.forget(request, cut_off=False)
    assert request not in table
    assert len(table) == 0
    assert table.request(slot) is None
    assert table.active()[0] == []
    assert len(table.streams(())) == 0
    with pytest.raises(KeyError):
        table.slot(request)
    with pytest.raises(KeyError):
        table.qos_class(slot)


def test_the_predictor_hears_of_every_stream() -> None:
    class Heard(LimitLengths):
        def __init__(self) -> None:
            self.said = []

        def kind(self, traits):
            self.said.append(traits)
            return len(self.said)

        def ended(self, kind, length, *, cut_off):
            self.said.append((kind, length, cut_off))

        def lengths(self, kind, generated):
            return CERTAIN.repeated(len(self.said) + 1)

    heard = Heard()
    table = StreamTable(heard, capacity=4)
    aborted = running(table)
    aborted.produce(3)
    table.collect(3.0)
    assert table.streams(()).kind.tolist() == [1]
    table.forget(aborted, cut_off=True)
    traits, *rest = heard.said
    assert (traits.prompt > 0, traits.limit, traits.thinking) == (True, 50, False)
    assert rest == [(1, 3, True)]


def test_a_slot_is_reused_afresh(table) -> None:
    old = running(table)
    slot = table.slot(old)
    table.phases.admit([slot])
    table.preemptible[slot] = False
    old.produce(5)
    table.collect(3.0)
    table.forget(old, cut_off=True)
    new = Request()
    assert track(table, new, prompt=9, rate=5.0, qos_class="listening", arrival=8.0) == slot
    seen = table.streams(())
    assert seen.phase.tolist() == [Phase.WAITING]
    assert (seen.prompt.tolist(), seen.generated.tolist()) == ([9], [0])
    assert (seen.rate.tolist(), seen.next_due.tolist()) == ([5.0], [8.0])
    assert np.isnan(seen.first_text).all()
    new.produce(2)
    table.move(new, Phase.RUNNING, 9.0)
    table.collect(9.5)
    assert table.streams(()).first_text.tolist() == [9.5]
    seen = table.streams(())
    assert seen.admitted.tolist() == [False]
    assert table.preemptible[slot]
    assert table.qos_class(slot) == "listening"


def test_a_forgotten_stream_writes_nothing_into_its_reused_slot(table) -> None:
    old, new = running(table), Request()
    table.collect(3.0)
    old.produce(5)
    table.forget(old, cut_off=True)
    track(table, new)
    assert table.collect(4.0).slots.tolist() == []
    assert table.streams(()).generated.tolist() == [0]


def test_the_table_grows_and_keeps_what_it_holds(table) -> None:
    requests = []
    for number in range(11):
        request = running(table, prompt=number, arrival=float(number))
        request.produce(number)
        requests.append(request)
        table.phases.admit([table.slot(request)])
        table.collect(20.0 + number)
    seen = table.streams(())
    assert len(set(seen.slot.tolist())) == 11
    assert seen.prompt.tolist() == seen.generated.tolist() == list(range(11))
    assert seen.arrival.tolist() == [float(n) for n in range(11)]
    assert seen.admitted.all()
    assert [table.request(s) for s in seen.slot.tolist()] == requests


def test_order_is_order_of_arrival_whatever_the_slots(table) -> None:
    a, b, c = Request(), Request(), Request()
    for request in (a, b, c):
        track(table, request)
    table.forget(a, cut_off=True)
    d = Request()
    track(table, d)  # in a's old slot
    assert table.order().tolist() == [table.slot(r) for r in (b, c, d)]
    assert table.requests(Phase.WAITING) == [b, c, d]
    for request in (d, b):
        table.move(request, Phase.RUNNING, 2.0)
    assert table.active()[0] == [b, d]


@pytest.mark.parametrize("slot", [-1, 2, 4, 1000])
def test_an_unknown_slot_holds_no_request(table, slot) -> None:
    track(table, Request())
    track(table, Request())
    assert table.request(slot) is None


# limit is 50: the last two tokens come sooner than an eviction.
@pytest.mark.parametrize(("generated", "can"), [(0, False), (1, True), (47, True), (48, False)])
def test_preemptible_between_the_first_token_and_the_last_two(table, generated, can) -> None:
    request = running(table)
    request.produce(generated)
    table.collect(3.0)
    assert table.streams(()).preemptible.tolist() == [can]


def test_states_share_a_standing_until_a_stream_moves(table) -> None:
    request = running(table)
    first = table.streams(()).standing
    request.produce(3)
    table.collect(3.0)
    assert table.streams(()).standing is first
    table.move(request, Phase.PAUSED, 4.0)
    moved = table.streams(()).standing
    assert (first.running.tolist(), moved.running.tolist()) == ([True], [False])
    assert moved.since.tolist() == [4.0]
    track(table, Request())
    assert table.streams(()).standing.slot.tolist() == [*moved.slot.tolist(), 1]
    for column in (moved.slot, moved.phase, moved.since, moved.running, moved.paused_index):
        assert not column.flags.writeable


def test_untouchable_slots_are_not_preemptible_in_this_view_only(table) -> None:
    requests = [running(table) for _ in range(3)]
    for request in requests:
        request.produce(5)
    table.collect(3.0)
    slot = table.slot(requests[1])
    assert table.streams([slot, 999]).preemptible.tolist() == [True, False, True]
    assert table.streams(()).preemptible.tolist() == [True, True, True]


def test_a_stream_marked_as_not_preemptible_stays_so(table) -> None:
    request = running(table)
    table.preemptible[table.slot(request)] = False
    request.produce(5)
    table.collect(3.0)
    assert table.streams(()).preemptible.tolist() == [False]


def test_a_view_is_a_copy(table) -> None:
    request = running(table)
    before = table.streams(())
    request.produce(5)
    table.collect(3.0)
    table.move(request, Phase.PAUSED, 4.0)
    assert before.generated.tolist() == [0]
    assert before.phase.tolist() == [Phase.RUNNING]


class AgainstADictionary(RuleBasedStateMachine):
    """Any order of calls, compared with a plain dictionary of requests."""

    @initialize()
    def start(self) -> None:
        self.table: StreamTable[Request] = StreamTable(LimitLengths(), capacity=1)
        self.phases: dict[Request, Phase] = {}
        self.told: dict[Request, tuple[int, int]] = {}  # made, sent
        self.left: set[Request] = set()
        self.now = 0.0

    @rule()
    def arrive(self) -> None:
        request = Request()
        track(self.table, request, arrival=self.now, now=self.now)
        self.phases[request] = Phase.WAITING
        self.told[request] = 0, 0

    @precondition(lambda self: self.phases)
    @rule(data=st.data(), phase=st.sampled_from(list(Phase)))
    def move(self, data: st.DataObject, phase: Phase) -> None:
        request = list(self.phases)[data.draw(st.integers(0, len(self.phases) - 1))]
        self.table.move(request, phase, self.now)
        if self.phases[request] in PRODUCING and phase not in PRODUCING:
            self.left.add(request)
        self.phases[request] = phase

    @precondition(lambda self: self.phases)
    @rule(data=st.data(), cut_off=st.booleans())
    def leave(self, data: st.DataObject, cut_off: bool) -> None:
        request = list(self.phases)[data.draw(st.integers(0, len(self.phases) - 1))]
        self.table.forget(request, cut_off=cut_off)
        del self.phases[request], self.told[request]

    @rule(count=st.integers(0, 3), held_back=st.integers(0, 2))
    def step(self, count: int, held_back: int) -> None:
        self.now += 0.1
        for request, phase in self.phases.items():
            if phase in PRODUCING:
                # Never more than there is to hold back, and what was sent stays sent.
                unsent = request.held_back + count
                request.produce(count, min(held_back, unsent))
        for request, phase in self.phases.items():
            if phase in PRODUCING or request in self.left:
                self.told[request] = len(request.output_ids), request.send_token_offset
        self.left.clear()
        self.table.collect(self.now)

    @invariant()
    def agrees(self) -> None:
        seen = self.table.streams(())
        assert [self.table.request(s) for s in seen.slot.tolist()] == list(self.phases)
        assert seen.phase.tolist() == list(self.phases.values())
        assert seen.generated.tolist() == [made for made, _ in self.told.values()]
        delivered = self.table.readers.delivered[seen.slot].tolist()
        assert delivered == [sent for _, sent in self.told.values()]
        assert len(self.table) == len(self.phases)


AgainstADictionary.TestCase.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None
)
test_any_order_of_calls = AgainstADictionary.TestCase


def test_objectives_are_seen_where_there_are_some(table) -> None:
    first, second = Request(), Request()
    track(table, first)
    seen = table.streams([])
    assert (seen.ttft_slo, seen.tbt_slo, seen.tpot_slo) == (None, None, None)
    slot = track(table, second)
    table.ask(slot, QosClass("chat", 10.0, ttft_slo=3.0, tpot_slo=0.2))
    seen = table.streams([])
    assert seen.ttft_slo.tolist() == [pytest.approx(math.nan, nan_ok=True), 3.0]
    assert seen.tpot_slo.tolist() == [pytest.approx(math.nan, nan_ok=True), 0.2]
    assert seen.tbt_slo is None
    # A slot that is used again has none.
    table.forget(second, cut_off=False)
    assert track(table, Request()) == slot
    assert table.streams([]).ttft_slo is None


def test_weight_and_tolerance_are_seen_where_they_say_something(table) -> None:
    first, second = Request(), Request()
    track(table, first)
    seen = table.streams(())
    assert (seen.weight, seen.tolerance) == (None, None)
    slot = track(table, second, weight=2.0, tolerance=0.5)
    seen = table.streams(())
    assert seen.weight.tolist() == [1.0, 2.0]
    assert seen.tolerance.tolist() == [0.0, 0.5]
    assert table.readers.threshold[slot] == 0.5
    table.forget(second, cut_off=False)
    assert table.streams(()).weight is None
    assert track(table, Request()) == slot
    assert table.streams(()).weight is None, "a slot is used again afresh"
    assert table.readers.threshold[slot] == NOTICEABLE_STALL
