"""Plans: which streams they pause and why, how far ahead they are made, and how long they last."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tokenflow_sgl.placement import (
    NEW,
    PAUSED,
    Batch,
    Installed,
    Machine,
    PauseReason,
    PlacementTerms,
    allowed_seconds,
    blocks_after,
    every_kth,
    plan,
    solve,
)
from tokenflow_sgl.placement.milp import solve_milp
from tokenflow_sgl.placement.planner import lasts

LAYERS = 9


def machine(memory: float, bandwidth: float = 3.0) -> Machine:
    return Machine(np.ones(LAYERS), bandwidth, memory)


def test_what_fits_runs() -> None:
    found = plan(Batch.of(np.array([48, 96])), machine(70.0), PlacementTerms(ahead=0))
    assert found.paused == () and (found.layout != PAUSED).all()
    assert found.blocks <= 70.0
    assert found.seconds == pytest.approx(9.0, abs=1e-4)


def test_layers_that_take_no_time_have_a_plan() -> None:
    free = Machine(np.zeros(LAYERS), 3.0, 70.0)
    found = plan(Batch.of(np.array([16, 16])), free, PlacementTerms(ahead=0))
    assert (found.seconds, found.paused) == (0.0, ())
    assert found.lasts > 0


def test_it_is_made_for_the_blocks_that_are_to_come() -> None:
    assert tuple(blocks_after(np.array([48, 49]), 0, 16)) == (3.0, 4.0)
    assert tuple(blocks_after(np.array([48, 90]), 15, 16)) == (4.0, 7.0)
    batch = Batch.of(np.array([48, 90]))
    ahead = plan(batch, machine(66.0), PlacementTerms(ahead=16, worse=10.0))
    now = plan(batch, machine(66.0), PlacementTerms(ahead=0, worse=10.0))
    assert tuple(ahead.sizes) == (4.0, 7.0)
    # Made for today's blocks it has less on the host, and does not fit as long.
    assert now.lasts < ahead.lasts
    assert ahead.lasts >= 16


def test_a_plan_lasts_until_the_last_step_in_which_it_fits() -> None:
    batch = Batch.of(np.array([55, 90]))
    terms = PlacementTerms(ahead=0, worse=10.0, window=64)
    found = plan(batch, machine(66.0), terms, layouts=every_kth(LAYERS))

    def blocks(steps: int) -> float:
        sizes = blocks_after(batch.tokens, steps, terms.block)
        numbers = [len(found.layouts.choices[of]) for of in found.layout]
        staged = max(
            sum(
                s
                for s, of in zip(sizes, found.layout, strict=True)
                if at in every_kth(9).choices[of]
            )
            for at in range(1, LAYERS + 1)
        )
        return staged + sum(s * (LAYERS - n) for s, n in zip(sizes, numbers, strict=True))

    assert 0 < found.lasts < 64
    assert blocks(found.lasts) <= 66.0 < blocks(found.lasts + 1)


def test_a_plan_expires_when_another_is_better() -> None:
    batch = Batch.of(np.array([195, 398]))
    patient, strict = (
        plan(batch, machine(330.0, 8.0), PlacementTerms(worse=worse)) for worse in (10, 0.02)
    )
    assert np.array_equal(strict.layout, patient.layout)
    assert strict.lasts < patient.lasts


def test_the_largest_stream_is_paused_for_memory() -> None:
    found = plan(Batch.of(np.array([160, 3200, 320])), machine(60.0), PlacementTerms(ahead=0))
    assert found.paused == ((1, PauseReason.MEMORY),)
    assert found.layout[1] == PAUSED and (found.layout[[0, 2]] != PAUSED).all()


def test_deposited_tokens_count_as_its_kv() -> None:
    batch = Batch(np.array([1600, 1610]), np.array([100, 0]), np.full(2, np.inf))
    assert plan(batch, machine(150.0), PlacementTerms(ahead=0)).paused == ((0, PauseReason.MEMORY),)
    without = Batch.of(batch.tokens)
    assert plan(without, machine(150.0), PlacementTerms(ahead=0)).paused == (
        (1, PauseReason.MEMORY),
    )


def test_a_step_that_is_too_long_pauses_a_stream() -> None:
    tokens = np.array([160, 1600, 320])
    free = plan(Batch.of(tokens), machine(500.0), PlacementTerms(ahead=0))
    assert free.paused == ()
    short = plan(Batch.of(tokens, tbt_slo=9.5), machine(500.0), PlacementTerms(ahead=0))
    assert short.paused == ((1, PauseReason.OBJECTIVE),)
    assert short.seconds <= 9.5 < free.seconds


def test_some_objectives_may_be_missed() -> None:
    slo = np.array([9.5, 900.0, 900.0])
    batch = Batch(np.array([160, 1600, 320]), np.zeros(3, dtype=np.int64), slo)
    assert plan(batch, machine(500.0), PlacementTerms(ahead=0)).paused
    assert not plan(batch, machine(500.0), PlacementTerms(ahead=0, violations=1)).paused
    assert allowed_seconds(slo, 0) == 9.5
    assert allowed_seconds(slo, 1) == 900.0
    assert allowed_seconds(slo, 3) == np.inf


def test_nothing_fits_and_all_pause() -> None:
    found = plan(Batch.of(np.array([160, 320])), machine(1.0))
    assert [stream for stream, _ in found.paused] == [1, 0]
    assert (found.layout == PAUSED).all() and found.seconds == 0.0


def test_a_plan_is_what_the_next_one_begins_from() -> None:
    tokens = np.array([160, 480, 320, 240])
    first = plan(Batch.of(tokens), machine(400.0), PlacementTerms(ahead=0))
    assert first.seconds > 9.0
    installed = first.installed()
    assert installed.steps == max(first.lasts, 1)
    again = plan(Batch.of(tokens), machine(400.0), PlacementTerms(ahead=0), installed=installed)
    assert np.array_equal(again.layout, first.layout)
    paused = plan(Batch.of(np.array([160, 3200, 320])), machine(60.0), PlacementTerms(ahead=0))
    assert paused.installed().layout[1] == NEW


def test_migration_does_not_pause_a_stream() -> None:
    # With steps=1 no migration pays, and what was in force misses the objective.
    tokens = np.array([320, 480])
    kept = plan(Batch.of(tokens), machine(300.0), PlacementTerms(ahead=0))
    everything = len(kept.layouts) - 1
    forced = kept.installed(steps=1e-3)
    forced.layout[:] = everything
    free = plan(Batch.of(tokens), machine(300.0), PlacementTerms(ahead=0), installed=forced)
    assert free.seconds > 1.2 * kept.seconds
    slo = Batch.of(tokens, tbt_slo=1.1 * kept.seconds)
    found = plan(slo, machine(300.0), PlacementTerms(ahead=0), installed=forced)
    assert found.paused == ()
    assert found.seconds == pytest.approx(kept.seconds)


def test_scipys_milp_is_a_backend() -> None:
    def backend(sizes, layouts, machine, installed):
        return solve_milp(sizes, layouts, machine, installed=installed, gap=1e-6)

    batch = Batch.of(np.array([160, 480, 320]))
    ours, theirs = (
        plan(batch, machine(300.0), PlacementTerms(ahead=0), backend=one) for one in (None, backend)
    )
    assert ours.seconds == pytest.approx(theirs.seconds, rel=1e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(Batch.of, np.array([], dtype=np.int64)), "tokens is empty"),
        (partial(Batch.of, np.array([0])), "tokens is 0; allowed is 1 or more"),
        (partial(Batch.of, np.array([1]), 0.0), "tbt_slo has a value that is not above 0"),
        (partial(Batch, np.array([1]), np.array([-1]), np.ones(1)), "deposit is -1; allowed is 0"),
        (partial(Batch, np.array([1]), np.zeros(2), np.ones(1)), "deposit or tbt_slo has other"),
    ],
)
def test_bad_batches_are_named(make, message) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_an_objective_that_its_stream_does_not_keep_alone_pauses_no_other() -> None:
    tokens, slo = np.array([480, 400, 480, 64]), np.array([np.inf, np.inf, np.inf, 5.0])
    batch = Batch(tokens, np.zeros(4, dtype=np.int64), slo)
    found = plan(batch, machine(9000.0), PlacementTerms(ahead=0))
    assert found.paused == ()
    # One that can be kept counts as before, beside two that are violations anyway.
    slo[0] = 8.0
    assert plan(batch, machine(9000.0), PlacementTerms(ahead=0)).paused == ()
    slo[1] = 9.5
    for violations in (0, 1):
        kept = plan(batch, machine(320.0), PlacementTerms(ahead=0, violations=violations))
        assert kept.seconds <= 9.5
        assert kept.paused


def test_where_none_keeps_its_objective_all_run_late() -> None:
    # Of both together a layer takes two seconds, whichever runs.
    batch = Batch.of(np.array([48, 96]), tbt_slo=9.5)
    slow = Machine(np.full(LAYERS, 2.0), 3.0, 1000.0)
    found = plan(batch, slow, PlacementTerms(ahead=0))
    assert (found.paused, found.seconds) == ((), pytest.approx(18.0))
    # The bound of 9 s is within the objective, no placement is.
    alone = Batch.of(np.array([800]), tbt_slo=1.0)
    free = plan(Batch.of(alone.tokens), machine(200.0), PlacementTerms(ahead=0))
    near = (free.bound + free.seconds) / 2.0
    assert free.bound * 1.01 < near
    late = plan(Batch.of(alone.tokens, tbt_slo=near), machine(200.0), PlacementTerms(ahead=0))
    assert (late.paused, late.seconds) == ((), pytest.approx(free.seconds))


def test_what_the_last_one_to_pause_kept_out_runs_after_all() -> None:
    # The second stream is to run, but does not fit even alone.
    batch = Batch.of(np.array([160, 32000, 320]))
    last = np.array([False, True, False])
    found = plan(batch, machine(60.0), PlacementTerms(ahead=0), last=last)
    assert found.paused == ((1, PauseReason.MEMORY),)
    # The middle one's objective pauses the first, then itself.
    slo = np.array([np.inf, 9.0 + 1e-9, np.inf])
    tight = Batch(np.array([960, 800, 320]), np.zeros(3, dtype=np.int64), slo)
    found = plan(tight, machine(600.0), PlacementTerms(ahead=0))
    assert found.paused == ((1, PauseReason.OBJECTIVE),)


def test_no_placement_is_searched_where_the_bound_is_too_long() -> None:
    searched = []

    def backend(sizes, layouts, machine, installed):
        searched.append(sizes.size)
        return solve(sizes, layouts, machine)

    tokens = np.array([160, 1600, 1610, 1620, 320])
    found = plan(
        Batch.of(tokens, tbt_slo=9.5), machine(500.0), PlacementTerms(ahead=0), backend=backend
    )
    assert len(found.paused) == 3
    assert searched == [2]


def test_a_step_below_the_bound_by_rounding_lasts() -> None:
    batch = Batch.of(np.array([48, 96]))
    found = plan(batch, machine(1000.0), PlacementTerms(ahead=0))
    above = replace(found, bound=1.5 * found.seconds)
    assert (
        lasts(above, batch.tokens, machine(1000.0), PlacementTerms(ahead=0))
        == PlacementTerms().window
    )


def test_scipys_plan_lasts_as_long_though_another_is_in_force() -> None:
    def backend(sizes, layouts, machine, installed):
        return solve_milp(sizes, layouts, machine, installed=installed, gap=1e-6)

    batch, layouts = Batch.of(np.array([160, 480, 320])), every_kth(LAYERS)
    all_on_host = Installed(layouts, np.full(3, len(layouts) - 1), 4.0)
    ours, theirs = (
        plan(batch, machine(300.0), layouts=layouts, installed=all_on_host, backend=one)
        for one in (None, backend)
    )
    assert theirs.bound <= theirs.seconds
    assert theirs.bound == pytest.approx(ours.bound, rel=1e-4)
    assert theirs.lasts == ours.lasts > 1


def test_a_pause_makes_the_layers_of_the_others_shorter() -> None:
    # A layer takes a second for each stream; the objective leaves nine for nine layers.
    batch = Batch.of(np.array([48, 96]), tbt_slo=9.5)

    def of(places) -> Machine:
        return Machine(np.full(LAYERS, float(places.size)), 3.0, 1000.0)

    found = plan(batch, of, PlacementTerms(ahead=0))
    assert found.paused == ((1, PauseReason.OBJECTIVE),)
    assert found.seconds == pytest.approx(9.0, abs=1e-4)
    assert found.bound == pytest.approx(9.0, abs=1e-4)
