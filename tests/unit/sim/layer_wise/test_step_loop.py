"""An engine that executes placements layer by layer, on a device whose times are in the head."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from tokenflow_sgl.choices import Staging
from tokenflow_sgl.lab.sim.layer_wise import (
    AtChanges,
    DeepSpeed,
    EachStep,
    Limits,
    OrbitFlow,
    Placed,
    Static,
    attained,
    serve_batch,
)
from tokenflow_sgl.lab.sim.layer_wise.step_loop import machine_of
from tokenflow_sgl.lab.traces import TraceRequest
from tokenflow_sgl.placement import PlacementTerms, decode_step, every_kth, for_batch
from tokenflow_sgl.placement.baselines import (
    deepspeed_seconds,
    dynamic_heuristic,
    flexgen_plus,
)

# Ten layers of 1 ms; a block of 10 tokens has 1,000 bytes in a layer: 10,000 blocks per second.
LIMITS = Limits(rows=4, batch_tokens=2000, device_tokens=1000, block=10)
LAYOUTS = every_kth(10)


def served(device, rows, placer, limits=LIMITS, admission=None):
    return serve_batch([TraceRequest(*row) for row in rows], device, limits, placer, admission)


class Recorded:
    """Passes on what another placer decides, and keeps what it saw."""

    def __init__(self, inner) -> None:
        self.inner, self.seen = inner, []

    def place(self, view) -> Placed:
        placed = self.inner.place(view)
        self.seen.append((view, placed))
        return placed


def test_without_offloading_steps_take_the_devices_time(device) -> None:
    found = served(device, [(0.0, 100, 5), (0.0, 200, 3)], Static(10, LAYOUTS, 0))
    # Prefills of 0.1 and 0.2 s, then steps of 10 ms.
    assert found.times[0] == pytest.approx(np.r_[0.1, 0.3 + 0.01 * np.arange(1, 5)])
    assert found.times[1] == pytest.approx([0.3, 0.31, 0.32])
    assert (found.paused, found.migrating) == (0, 0.0)


def test_a_step_takes_what_the_fluid_model_says(device) -> None:
    placer = Recorded(Static(10, LAYOUTS, len(LAYOUTS) - 1))
    found = served(device, [(0.0, 300, 4), (0.0, 95, 20)], placer)
    view, placed = placer.seen[0]
    sizes = np.ceil(view.tokens / 10)
    machine = machine_of(device, LIMITS)(2, 395)
    layout = np.full(2, len(LAYOUTS) - 1)
    assert placed.seconds == pytest.approx(decode_step(sizes, layout, LAYOUTS, machine).seconds)
    assert placed.seconds > 0.03  # 40 blocks in each of ten layers, 4 ms each
    assert np.diff(found.times[1])[0] == pytest.approx(placed.seconds)


def test_it_is_asked_again_when_a_block_is_added_or_a_stream_ends(device) -> None:
    placer = Recorded(Static(10, LAYOUTS, 0))
    served(device, [(0.0, 95, 30), (0.0, 200, 3)], placer)
    # 95 tokens reach 100 and 110 after 5 and 15 steps; the other one ends after 2.
    assert [view.step for view, _ in placer.seen] == [0, 2, 5, 15, 25]
    assert [view.changed for view, _ in placer.seen] == [True, True, False, False, False]


def test_first_come_first_served_within_the_limits(device) -> None:
    rows = [(0.0, 900, 100), (0.0, 900, 100), (0.0, 10, 5)]
    found = served(device, rows, DeepSpeed(10))
    assert found.times[1][0] < found.times[0][-1]  # 2,000 tokens together
    assert found.times[2][0] > min(found.times[0][-1], found.times[1][-1])
    with pytest.raises(ValueError, match=r"request 0 has 2001 tokens; allowed are 2000$"):
        served(device, [(0.0, 1901, 100)], DeepSpeed(10))


def test_the_shortest_answer_first_of_those_that_wait(device) -> None:
    limits = dataclasses.replace(LIMITS, rows=1, shortest_first=True)
    rows = [(0.0, 100, 5), (0.01, 100, 40), (0.02, 100, 3), (9.0, 100, 9), (9.0, 100, 2)]
    found = served(device, rows, Static(10, LAYOUTS, 0), limits)
    firsts = [times[0] for times in found.times]
    assert np.argsort(firsts).tolist() == [0, 2, 1, 4, 3]
    assert attained(found, 1.0).ttft == pytest.approx(np.mean(firsts - found.arrival))
    assert firsts[4] == pytest.approx(9.1), "an idle engine waits for the next request"


def test_an_idle_engine_waits_for_the_next_request(device) -> None:
    found = served(device, [(0.0, 100, 2), (9.0, 100, 2)], DeepSpeed(10))
    assert found.times[1][0] == pytest.approx(9.1)


def test_a_request_that_comes_while_others_decode_is_prefilled_next(device) -> None:
    found = served(device, [(0.0, 100, 100), (0.155, 100, 2)], Static(10, LAYOUTS, 0))
    # Steps end at 0.11, 0.12, ...; the one under way at 0.155 ends at 0.16.
    assert found.times[1][0] == pytest.approx(0.26)


def test_deepspeed_has_all_layers_on_the_host(device) -> None:
    found = served(device, [(0.0, 500, 3)], DeepSpeed(10))
    machine = machine_of(device, LIMITS)(1, 500)
    expected = deepspeed_seconds(np.array([50.0]), machine)
    assert np.diff(found.times[0])[0] == pytest.approx(expected)


CROWD = [(0.0, 700, 90), (0.0, 400, 120), (0.0, 300, 200), (2.0, 100, 60)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: DeepSpeed(10),
        lambda: AtChanges(10, LAYOUTS, flexgen_plus),
        lambda: EachStep(10, LAYOUTS, dynamic_heuristic),
        lambda: OrbitFlow(math.inf, PlacementTerms(block=10)),
        lambda: OrbitFlow(0.02, PlacementTerms(block=10)),
    ],
)
def test_every_system_serves_all_that_comes(device, make) -> None:
    limits = dataclasses.replace(LIMITS, batch_tokens=2000)
    found = served(device, CROWD, make(), limits)
    assert [len(times) for times in found.times] == [90, 120, 200, 60]
    assert all((np.diff(times) > 0.0).all() for times in found.times)


def test_plans_by_stream_are_not_slower_than_one_for_all(device) -> None:
    uniform = served(device, CROWD, AtChanges(10, LAYOUTS, flexgen_plus))
    ours = served(device, CROWD, OrbitFlow(math.inf, PlacementTerms(block=10)))
    assert ours.decoding < uniform.decoding
    assert ours.paused == 0


def test_an_objective_pauses_streams_and_keeps_it_for_the_others(device) -> None:
    objective = 0.012
    free = served(device, CROWD, OrbitFlow(math.inf, PlacementTerms(block=10)))
    kept = served(device, CROWD, OrbitFlow(objective, PlacementTerms(block=10)))
    assert kept.paused > 0
    assert attained(kept, objective).tbt > attained(free, objective).tbt


def test_a_stream_that_cannot_keep_its_objective_alone_is_served_all_the_same(device) -> None:
    found = served(device, [(0.0, 900, 20)], OrbitFlow(0.001, PlacementTerms(block=10)))
    assert len(found.times[0]) == 20
    assert attained(found, 0.001).tbt == 0.0


def test_a_new_placement_waits_for_the_kv_that_comes_back(device) -> None:
    # All layers of 1,400 tokens cannot stay; when one of the streams has ended they can.
    rows = [(0.0, 700, 5), (0.0, 690, 40)]
    found = served(device, rows, AtChanges(10, LAYOUTS, flexgen_plus))
    assert found.migrating > 0.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: AtChanges(10, LAYOUTS, flexgen_plus),
        lambda: OrbitFlow(math.inf, PlacementTerms(block=10)),
    ],
)
def test_what_leaves_the_device_is_waited_for_where_it_was_not_copied_before(device, make) -> None:
    # One stream fits with all layers; layers of it leave when the other one joins.
    rows = [(0.0, 700, 200), (0.8, 690, 30)]
    plain, stored = Recorded(make()), Recorded(make())
    free = served(device, rows, plain)
    paid = served(device, rows, stored, dataclasses.replace(LIMITS, stores=True))
    left, came = (
        sum(getattr(placed, name) for _, placed in stored.seen) for name in ("leaving", "migrating")
    )
    assert left > 0.0
    assert free.migrating == pytest.approx(sum(placed.migrating for _, placed in plain.seen))
    assert paid.migrating == pytest.approx(came + left / 10_000)  # blocks per second


def test_a_staging_buffer_for_each_stream_leaves_less_for_layers(device) -> None:
    rows = [(0.0, 500, 60), (0.0, 400, 60), (0.0, 300, 60)]
    one, several = (
        served(
            device,
            rows,
            OrbitFlow(math.inf, PlacementTerms(block=10)),
            dataclasses.replace(LIMITS, staging=staging),
        )
        for staging in (Staging.layer, Staging.stream)
    )
    assert one.decoding < several.decoding


def test_more_choices_make_steps_shorter(device) -> None:
    # Four of the ten layers have to leave, and `half_phases` knows three or five.
    rows = [(0.0, 1300, 60)]
    few, many = (
        served(device, rows, OrbitFlow(math.inf, PlacementTerms(block=10), choices=choices))
        for choices in (None, for_batch)
    )
    assert many.decoding < few.decoding


class Alone:
    """Lets a request join an empty batch only."""

    def __init__(self) -> None:
        self.asked = []

    def joins(self, newcomer) -> bool:
        self.asked.append(newcomer)
        return not newcomer.batch


def test_a_request_joins_when_it_is_admitted(device) -> None:
    admission = Alone()
    rows = [(0.0, 100, 20), (0.0, 200, 5)]
    found = served(device, rows, Static(10, LAYOUTS, 0), admission=admission)
    assert found.times[1][0] == pytest.approx(found.times[0][-1] + 0.2)
    asked = admission.asked[1]
    assert (asked.slot, asked.tokens, asked.batch) == (1, 205, (0,))
    assert (asked.held.tolist(), asked.whole.tolist()) == ([100], [120])


def test_a_deposit_smooths_what_is_delivered(device) -> None:
    # Bursts of prefills between tokens: 0.3 s once, 10 ms otherwise.
    rows = [(0.0, 100, 60), (0.255, 300, 5)]
    found = served(device, rows, Static(10, LAYOUTS, 0))
    plain, held = (attained(found, 0.04, deposit=deposit) for deposit in (False, True))
    assert plain.tbt < held.tbt == 1.0
    assert plain.tpot == held.tpot == 1.0
    assert plain.end_to_end == pytest.approx(held.end_to_end)
    assert plain.requests == pytest.approx(held.requests)
