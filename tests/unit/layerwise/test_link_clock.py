"""With the clock, copies take their turns as in the planner's model of a step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.engine.layerwise.link_clock import LinkClock, StepSpeeds
from tokenflow_sgl.engine.layerwise.staging_queue import PageFetch, StagingQueue
from tokenflow_sgl.placement import Layouts, Machine, decode_step, half_phases

FIG_3 = Layouts(9, ((), (3, 6, 9), (4, 8)))


def played(sizes, layout, layouts: Layouts, bandwidth: float, speeds) -> float:
    """Seconds of a step whose link does what the queue asks for, in that order; layers take 1 s."""
    groups = [
        (tuple(layer - 1 for layer in layouts.choices[choice]), np.arange(size))
        for size, choice in zip(sizes, layout, strict=True)
    ]
    queue, clock = StagingQueue(groups), LinkClock(speeds)
    now = link = 0.0
    landed: dict[int, float] = {}

    def ask(fetches: list[PageFetch]) -> None:
        nonlocal link
        for each in fetches:
            clock.asked(each.layer, each.pages.size)
            link = max(link, now) + each.pages.size / bandwidth
            landed[each.layer] = link

    for layer in range(layouts.layers):
        ask(queue.due(layer))
        clock.starts(layer)
        # Before the layer starts, the next ones' pages are asked for: they follow its own.
        ask(queue.ahead(clock.most()))
        now = max(now, landed.pop(layer, 0.0)) + 1.0
        clock.ends()
        queue.done(layer)
    return now


@pytest.mark.parametrize(
    ("sizes", "layout", "stall"),
    [
        *(((3, 6), (1, 1), 9), ((3, 6), (0, 1), 0), ((3, 6), (2, 1), 0)),
        *(((4, 6), (1, 1), 12), ((4, 6), (0, 1), 0), ((4, 6), (2, 1), 2)),
    ],
)
def test_fig_3_of_orbitflow(sizes, layout, stall) -> None:
    seconds = played(sizes, layout, FIG_3, 3.0, StepSpeeds(1.0, 3.0))
    assert (seconds - 9.0) * 3.0 == pytest.approx(stall)


@given(st.data())
def test_a_step_is_as_long_as_the_planner_says_but_for_a_page_a_layer(data) -> None:
    layers = data.draw(st.sampled_from([4, 9, 32]))
    layouts = half_phases(layers)
    batch = data.draw(
        st.lists(
            st.tuples(st.integers(1, 60), st.integers(0, len(layouts) - 1)), min_size=1, max_size=8
        )
    )
    sizes, layout = (list(each) for each in zip(*batch, strict=True))
    bandwidth = data.draw(st.sampled_from([1.0, 3.0, 10.0, 30.0, 100.0]))
    machine = Machine(np.ones(layers), bandwidth=bandwidth, memory=1e9)
    best = decode_step(np.array(sizes, float), np.array(layout), layouts, machine).seconds
    seconds = played(sizes, layout, layouts, bandwidth, StepSpeeds(1.0, bandwidth))
    assert best - 1e-6 <= seconds <= best + layers / bandwidth + 1e-6


def test_nothing_known_holds_nothing_back() -> None:
    clock = LinkClock(None)
    clock.asked(3, 100)
    clock.starts(0)
    clock.ends()
    assert clock.most() is None
