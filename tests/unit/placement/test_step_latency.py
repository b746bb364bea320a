"""How long a decode step takes: OrbitFlow's Fig. 3, and the model's laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.placement import (
    Layouts,
    Machine,
    Sharing,
    Staging,
    decode_step,
    every_kth,
    half_phases,
    resident_blocks,
    staging_blocks,
)

FIG_3 = Layouts(9, ((), (3, 6, 9), (4, 8)))
NONE, THIRD, FOURTH = 0, 1, 2
PLACEMENTS = {"A": [THIRD, THIRD], "B": [NONE, THIRD], "C": [FOURTH, THIRD]}
MACHINE = Machine(compute=np.ones(9), bandwidth=3.0, memory=70.0)
STEP_1, STEP_16 = np.array([3.0, 6.0]), np.array([4.0, 6.0])


def stalled(sizes, placement, sharing=Sharing.EARLIEST_DEADLINE) -> float:
    """Blocks that the link moves while the device waits, as the paper counts stalls."""
    layout = np.array(PLACEMENTS[placement])
    return decode_step(sizes, layout, FIG_3, MACHINE, sharing).stalled * MACHINE.bandwidth


def needed(sizes, placement, staging) -> float:
    layout = np.array(PLACEMENTS[placement])
    return resident_blocks(sizes, layout, FIG_3) + staging_blocks(sizes, layout, FIG_3, staging)


@pytest.mark.parametrize(
    ("sizes", "placement", "stall", "blocks"),
    [
        (STEP_1, "A", 9, 63),
        (STEP_1, "B", 0, 69),
        (STEP_1, "C", 0, 63),
        (STEP_16, "A", 12, 70),
        (STEP_16, "B", 0, 78),  # above 70: infeasible, whatever it stalls
        (STEP_16, "C", 2, 70),
    ],
)
def test_fig_3_by_earliest_deadline(sizes, placement, stall, blocks) -> None:
    assert stalled(sizes, placement) == pytest.approx(stall, abs=1e-9)
    assert needed(sizes, placement, Staging.layer) == blocks


def test_fig_3_is_not_what_equal_sharing_gives() -> None:
    # The paper says that the link is shared equally; its figure stalls C at step 1 if it is.
    assert stalled(STEP_1, "C", Sharing.EQUAL) > 0.5
    assert stalled(STEP_1, "A", Sharing.EQUAL) == pytest.approx(9)


def test_fig_3_needs_more_with_a_buffer_for_each_stream() -> None:
    assert needed(STEP_16, "C", Staging.stream) == 74
    assert needed(STEP_16, "A", Staging.stream) == needed(STEP_16, "A", Staging.layer)


def test_a_copy_waits_while_its_buffer_is_in_use() -> None:
    layouts = Layouts(4, ((1, 2, 3, 4),))
    machine = Machine(np.full(4, 2.0), bandwidth=1.0, memory=9.0)
    step = decode_step(np.array([3.0]), np.array([0]), layouts, machine)
    # No copy runs beside a layer: all of them are stalls.
    assert step.seconds == pytest.approx(4 * (3.0 + 2.0))
    assert [copy.ready for copy in step.copies] == pytest.approx([0.0, 5.0, 10.0, 15.0])


sizes_of = st.lists(st.integers(1, 60), min_size=1, max_size=6)


@st.composite
def batches(draw):
    layers = draw(st.integers(1, 12))
    layouts = draw(st.sampled_from([every_kth, half_phases]))(layers)
    sizes = np.array(draw(sizes_of), dtype=np.float64)
    layout = np.array([draw(st.integers(0, len(layouts) - 1)) for _ in sizes])
    compute = np.array(draw(st.lists(st.floats(0.0, 3.0), min_size=layers, max_size=layers)))
    return sizes, layout, layouts, Machine(compute, draw(st.floats(0.5, 50.0)), 1e9)


@settings(deadline=None)
@given(batches(), st.sampled_from(list(Sharing)))
def test_every_block_is_copied_once_and_in_time(batch, sharing) -> None:
    sizes, layout, layouts, machine = batch
    step = decode_step(sizes, layout, layouts, machine, sharing)
    copied = {(copy.stream, copy.layer): copy for copy in step.copies}
    assert set(copied) == {
        (stream, layer) for stream, of in enumerate(layout) for layer in layouts.choices[of]
    }
    moved = 0.0
    for (stream, layer), copy in copied.items():
        blocks = sum((piece.end - piece.begin) * piece.rate for piece in copy.pieces)
        assert blocks == pytest.approx(sizes[stream])
        assert copy.pieces[0].begin >= copy.ready - 1e-9
        assert copy.pieces[-1].end <= step.start[layer - 1] + 1e-6
        moved += blocks
    assert step.seconds >= moved / machine.bandwidth - 1e-9  # the link is never faster than it is
    assert step.seconds == pytest.approx(machine.computing + step.stalled)


@settings(deadline=None)
@given(batches())
def test_earliest_deadline_is_never_later_than_equal_sharing(batch) -> None:
    deadline = decode_step(*batch).seconds
    equal = decode_step(*batch, Sharing.EQUAL).seconds
    assert deadline <= equal * (1 + 1e-9) + 1e-9


@settings(deadline=None)
@given(batches())
def test_it_is_the_longest_path(batch) -> None:
    sizes, layout, layouts, machine = batch
    pairs = [  # (cannot begin before this layer ends, is due when this layer starts, blocks)
        (before, layer, size)
        for size, of in zip(sizes, layout, strict=True)
        for before, layer in zip((0, *layouts.choices[of]), layouts.choices[of], strict=False)
    ]
    end = np.zeros(machine.layers + 1)
    for j in range(1, machine.layers + 1):
        start = end[j - 1]
        for p in range(j):
            due = sum(size for begin, at, size in pairs if begin >= p and at <= j)
            if due:
                start = max(start, end[p] + due / machine.bandwidth)
        end[j] = start + machine.compute[j - 1]
    assert decode_step(*batch).seconds == pytest.approx(end[-1], rel=1e-9, abs=1e-9)


def test_layouts_and_machine_have_as_many_layers() -> None:
    with pytest.raises(ValueError, match="layouts are for 9 layers; allowed here is 4"):
        decode_step(STEP_1, np.array([0, 0]), FIG_3, Machine(np.ones(4), 1.0, 1.0))
