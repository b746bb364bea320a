"""Where streams stand, without an engine."""

from __future__ import annotations

import numpy as np
import pytest

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.lifecycle import NOT_HERE, Phases
from tokenflow_sgl.lifecycle.phases import worth_preempting


def test_a_stream_arrives_moves_and_leaves() -> None:
    phases = Phases(2)
    phases.arrive(1, 3.0)
    assert phases.is_in(1, Phase.WAITING)
    assert phases.since[1] == 3.0
    before = phases.version
    phases.move(1, Phase.RUNNING, 4.0)
    assert phases.is_in(1, Phase.WAITING, Phase.RUNNING)
    assert not phases.is_in(1, Phase.PAUSED)
    assert phases.version > before
    phases.leave(1)
    assert phases.phase.tolist() == [NOT_HERE, NOT_HERE]
    assert not phases.is_in(1, *Phase)


@pytest.mark.parametrize("slot", [-1, 2, 1000])
def test_a_slot_that_never_was_is_in_no_phase(slot) -> None:
    phases = Phases(2)
    phases.arrive(1, 0.0)
    assert not phases.is_in(slot, *Phase)


def test_of_several_slots_those_in_a_phase_are_named_in_their_order() -> None:
    phases = Phases(6)
    for slot, phase in ((1, Phase.RUNNING), (2, Phase.PAUSED), (5, Phase.RUNNING)):
        phases.arrive(slot, 0.0)
        phases.move(slot, phase, 0.0)
    asked = [5, 9, 2, -1, 0, 1]
    assert phases.those_in(asked, Phase.RUNNING) == [5, 1]
    assert phases.those_in(asked, Phase.PAUSED, Phase.RUNNING) == [5, 2, 1]
    assert phases.those_in([], Phase.RUNNING) == []


def test_only_a_stream_whose_load_has_landed_is_ready() -> None:
    phases = Phases(1)
    phases.arrive(0, 0.0)
    for phase in (Phase.RUNNING, Phase.DRAINING, Phase.PAUSED, Phase.LOADING):
        phases.move(0, phase, 1.0)
        assert not phases.ready[0]
    phases.move(0, Phase.PAUSED, 2.0)
    assert phases.ready[0]
    phases.move(0, Phase.RUNNING, 3.0)
    assert not phases.ready[0]


def test_a_slot_is_used_again_afresh() -> None:
    phases = Phases(1)
    phases.arrive(0, 0.0)
    phases.admit([0])
    phases.leave(0)
    phases.arrive(0, 5.0)
    assert not phases.admitted[0]


def test_growing_keeps_what_is_there() -> None:
    phases = Phases(1)
    phases.arrive(0, 7.0)
    phases.admit([0])
    phases.grow(3)
    phases.arrive(2, 8.0)
    assert phases.phase.tolist() == [Phase.WAITING, NOT_HERE, Phase.WAITING]
    assert phases.since.tolist() == [7.0, 0.0, 8.0]
    assert phases.admitted.tolist() == [True, False, False]


def test_streams_that_stop_generating_are_named_once() -> None:
    phases = Phases(4)
    for slot in range(4):
        phases.arrive(slot, 0.0)
        phases.move(slot, Phase.RUNNING, 1.0)
    phases.move(0, Phase.DRAINING, 2.0)  # its last result may have a token
    phases.move(1, Phase.PAUSED, 2.0)
    phases.move(2, Phase.PAUSED, 2.0)
    phases.move(2, Phase.RUNNING, 2.0)
    phases.move(3, Phase.PAUSED, 2.0)
    phases.leave(3)
    assert phases.take_stopped() == [1]
    assert phases.take_stopped() == []
    assert phases.generates(np.arange(4)).tolist() == [True, False, True, False]


def test_a_preemption_is_worth_it_between_the_first_token_and_the_last_two() -> None:
    worth = worth_preempting(np.array([0, 1, 47, 48]), np.full(4, 50))
    assert worth.tolist() == [False, True, True, False]


def test_a_stream_that_is_loaded_in_part_keeps_count_of_it() -> None:
    phases = Phases(4)
    for slot in (0, 1, 2):
        phases.arrive(slot, 0.0)
        phases.move(slot, Phase.PAUSED, 1.0)
    phases.load(1, 30, 70, 2.0)
    phases.load(2, 40, 0, 2.0)
    assert [phases.is_in(slot, Phase.LOADING) for slot in (0, 1, 2)] == [False, True, True]
    assert phases.to_load(np.array([2, 1, 0])).tolist() == [0, 70, 0]
    assert phases.partly_loaded == 30
    phases.landed(1, 3.0)
    phases.landed(2, 3.0)
    assert phases.is_in(1, Phase.LOADING)
    assert phases.is_in(2, Phase.PAUSED)
    assert phases.ready.tolist() == [False, False, True, False]
    assert phases.since[1] == 2.0
    phases.load(1, 20, 50, 4.0)
    assert phases.partly_loaded == 50
    phases.load(1, 50, 0, 5.0)
    assert phases.partly_loaded == 0
    phases.landed(1, 6.0)
    assert phases.ready[1]


def test_what_is_given_up_or_aborted_is_loaded_in_part_no_more() -> None:
    phases = Phases(2)
    for slot in (0, 1):
        phases.arrive(slot, 0.0)
        phases.move(slot, Phase.PAUSED, 1.0)
        phases.load(slot, 30, 70, 2.0)
    phases.give_up(0, 3.0)
    phases.leave(1)
    assert phases.is_in(0, Phase.PAUSED)
    assert not phases.ready[0]
    assert phases.parts == {}
