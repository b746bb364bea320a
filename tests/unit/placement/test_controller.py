"""When plans are asked for, which streams they pause, and that none pauses for ever."""

from __future__ import annotations

import numpy as np
import pytest

from tokenflow_sgl.placement import PAUSED, Batch, Machine, PlacementTerms, every_kth, plan
from tokenflow_sgl.placement.controller import (
    CurrentPlan,
    Settings,
    Trigger,
    next_plan,
    stopgap,
    trigger,
)

LAYERS = 9
SETTINGS = Settings()
TERMS = PlacementTerms(ahead=8)


def machine(memory: float = 60.0) -> Machine:
    return Machine(np.ones(LAYERS), 3.0, memory)


def first(tokens, memory: float = 60.0, slots=None) -> CurrentPlan:
    batch = Batch.of(np.array(tokens))
    slots = tuple(range(len(tokens))) if slots is None else slots
    return next_plan(None, slots, batch, machine(memory), Trigger.BATCH, 0, SETTINGS, TERMS)


def test_a_new_batch_asks_for_a_plan() -> None:
    force = first([48, 96])
    assert trigger(None, (0, 1), 0, SETTINGS) is Trigger.BATCH
    assert trigger(force, (0, 1, 2), 1, SETTINGS) is Trigger.BATCH
    assert trigger(force, (0,), 1, SETTINGS) is Trigger.BATCH
    assert trigger(force, (1, 0), 1, SETTINGS) is None


def test_a_plan_expires() -> None:
    force = first([48, 96])
    lasts = force.plan.lasts
    assert lasts > 1
    assert trigger(force, (0, 1), lasts - 1, SETTINGS) is None
    assert trigger(force, (0, 1), lasts, SETTINGS) is Trigger.EXPIRY


def test_a_plan_stands_for_some_steps() -> None:
    force = first([48, 96])
    lasts = force.plan.lasts
    patient = Settings(shortest=lasts + 5)
    assert trigger(force, (0, 1), lasts + 4, patient) is None
    assert trigger(force, (0, 1), lasts + 5, patient) is Trigger.EXPIRY
    assert trigger(force, (0, 1, 2), 1, patient) is Trigger.BATCH


def test_what_pauses_is_tried_again_only_when_the_batch_changes() -> None:
    force = first([160, 3200, 320])
    assert force.paused_at == {1: 0}
    batch = Batch.of(np.array([170, 3200, 330]))
    roomy = machine(9000.0)  # it would fit, but nothing has come or gone
    later = next_plan(force, (0, 1, 2), batch, roomy, Trigger.EXPIRY, 10, SETTINGS, TERMS)
    assert later.paused_at == {1: 0} and later.plan.layout[1] == PAUSED
    assert later.plan.paused == force.plan.paused
    assert (later.plan.layout[[0, 2]] != PAUSED).all()
    gone = next_plan(
        later, (1, 2), Batch.of(batch.tokens[1:]), roomy, Trigger.BATCH, 11, SETTINGS, TERMS
    )
    assert gone.paused_at == {} and (gone.plan.layout != PAUSED).all()


def test_what_has_paused_too_long_is_the_last_to_pause() -> None:
    tokens = np.array([480, 500])
    tight = machine(50.0)
    terms = PlacementTerms(ahead=0)
    force = next_plan(None, (7, 8), Batch.of(tokens), tight, Trigger.BATCH, 0, SETTINGS, terms)
    assert set(force.paused_at) == {8}
    soon = next_plan(force, (7, 8), Batch.of(tokens), tight, Trigger.BATCH, 50, SETTINGS, terms)
    assert set(soon.paused_at) == {8} and soon.paused_at[8] == 0
    late = next_plan(soon, (7, 8), Batch.of(tokens), tight, Trigger.EXPIRY, 2000, SETTINGS, terms)
    assert late.paused_at == {7: 2000}


def test_no_stream_pauses_for_ever() -> None:
    settings, terms = Settings(longest_pause=20), PlacementTerms(ahead=4, window=8)
    tokens, slots = np.array([400, 480, 500]), (0, 1, 2)
    force: CurrentPlan | None = None
    ran = {slot: 0 for slot in slots}
    longest = dict.fromkeys(slots, 0)
    for step in range(300):
        why = trigger(force, slots, step, settings)
        if why is not None:
            force = next_plan(
                force, slots, Batch.of(tokens), machine(70.0), why, step, settings, terms
            )
        assert force is not None
        for place, slot in enumerate(slots):
            if force.plan.layout[place] != PAUSED:
                ran[slot] += 1
                longest[slot] = max(longest[slot], step - force.paused_at.get(slot, step))
            else:
                longest[slot] = max(longest[slot], step - force.paused_at[slot])
    assert min(ran.values()) > 0
    # A starving stream is tried when the plan in force expires, and there are two others before it.
    assert max(longest.values()) <= 2 * (settings.longest_pause + terms.window)
    assert max(longest.values()) > 10  # the control: memory is too small for all of them


def test_a_plan_whose_successor_is_late_is_kept_while_it_fits() -> None:
    layouts = every_kth(LAYERS)  # OrbitFlow's Fig. 3 B
    made = plan(
        Batch.of(np.array([48, 96])), machine(69.0), PlacementTerms(ahead=0), layouts=layouts
    )
    made.layout[:] = [layouts.index(()), layouts.index((3, 6, 9))]
    assert stopgap(made, np.array([48, 96]), machine(70.0), 16) == ()
    assert stopgap(made, np.array([63, 96]), machine(70.0), 16) == (1,)
    assert stopgap(made, np.array([63, 96]), machine(78.0), 16) == ()
    assert stopgap(made, np.array([63, 96]), machine(1.0), 16) == (1, 0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shortest": 0}, "shortest is 0; allowed is 1 or more"),
        ({"longest_pause": 0}, "longest_pause is 0; allowed is 1 or more"),
    ],
)
def test_bad_settings_are_named(values, message) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**values)


def test_the_machine_is_that_of_the_streams_that_run() -> None:
    seen = []

    def of(places) -> Machine:
        seen.append(places.tolist())
        return machine()

    force = first([48, 96, 30], memory=10.0)
    assert force.plan.paused
    batch = Batch.of(np.array([48, 96, 30]))
    next_plan(force, (0, 1, 2), batch, of, Trigger.EXPIRY, 1, SETTINGS, TERMS)
    # Places of the whole batch, without those that go on to pause.
    waits = {at for at, _ in force.plan.paused}
    assert seen and all(waits.isdisjoint(places) for places in seen)
