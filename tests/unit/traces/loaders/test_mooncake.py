"""What the loader makes of Mooncake files, by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tokenflow_sgl.lab.traces import PrefixBlock, TraceError
from tokenflow_sgl.lab.traces.loaders import load_mooncake
from tokenflow_sgl.lab.traces.loaders.mooncake import quantum


def mooncake(rows):
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    return "\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in rows)


def test_mooncake_prefix_lengths(write):
    rows = [(100, 1025, 5, [0, 1, 2]), (1100, 1024, 6, [0, 1]), (1150, 3, 7, [9])]
    trace = load_mooncake(write(mooncake(rows), "m.jsonl"))
    first, second, third = trace.requests
    assert first.prefix == (PrefixBlock(0, 512), PrefixBlock(1, 512), PrefixBlock(2, 1))
    assert second.prefix == first.prefix[:2]
    assert third.prefix == (PrefixBlock(9, 3),)
    assert [r.arrival_s for r in trace.requests] == [0.0, 1.0, 1.05]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ((1, 513, 1, [0]), "holds 1 ids; a prompt of 513 tokens has 2"),
        ((1, 512, 1, [0, 1]), "holds 2 ids; a prompt of 512 tokens has 1"),
        ((1, 5, 1, ["x"]), "is a text of 1 character; allowed is whole numbers"),
        ((1, 5, 1, [-1]), "is -1; allowed is whole numbers"),
        ((1, 5, 1, {"0": 1}), "is an object of 1; allowed is a list"),
        ((1, 513, 1, [0, 7]), "block 7 has 1 tokens here and 4 before"),
    ],
)
def test_mooncake_refuses_blocks_that_do_not_fit(row, problem, write):
    path = write(mooncake([(0, 4, 1, [7]), row]), "m.jsonl")
    with pytest.raises(TraceError, match=f"line 2, column hash_ids: {problem}"):
        load_mooncake(path)


def quantised_rows():
    # Steps of 3 s, rounded like the published ones; four requests each.
    return [(step * 3000 + (-1) ** step * (step > 0), 5, 5, [step]) for step in range(50)] * 4


def test_mooncake_spreads_quantised_times(write, is_balanced):
    path = write(mooncake(sorted(quantised_rows())), "m.jsonl")
    trace = load_mooncake(path, seed=1)
    assert is_balanced(trace)
    times = np.array([r.arrival_s for r in trace.requests])
    assert len(set(times)) == 200
    # Each request stays in its step, and the order of the file stays.
    assert (times // 3).tolist() == sorted(list(range(50)) * 4)
    assert [r.prefix[0].id for r in trace.requests] == sorted(list(range(50)) * 4)
    assert np.mean(times % 3) == pytest.approx(1.5, abs=0.2)
    assert "spread uniformly over each step, seed 1" in trace.notes[-1]
    assert load_mooncake(path, seed=1) == trace
    assert load_mooncake(path, seed=2) != trace


def test_mooncake_leaves_times_if_told_to(write):
    path = write(mooncake(sorted(quantised_rows())), "m.jsonl")
    trace = load_mooncake(path, spread=False)
    assert len({r.arrival_s for r in trace.requests}) == 50
    assert trace.notes[-1] == "Its times are quantised to 3 s and were left so."


def test_quantum_is_not_found_where_there_is_none():
    rng = np.random.default_rng(0)
    assert quantum(np.sort(rng.uniform(0, 1e6, 1000)).round().tolist()) is None
    assert quantum([0.0, 0.0, 0.0, 3000.0, 3000.0]) is None  # too few to tell
    assert quantum([0.0] * 100) is None
    irregular = rng.uniform(0, 1e6, 100).round()
    assert quantum(sorted(irregular.tolist() * 4)) is None


@pytest.mark.parametrize(
    "time_of",
    [
        lambda step: round(step * 1000 / 3),  # the step is no whole number of milliseconds
        lambda step: step * 3000 + (500 if step == 100 else 0),  # one time is off
    ],
)
def test_nearly_quantised_times_are_spread_too(time_of, write):
    rows = [(time_of(step), 5, 5, [3 * step + n]) for step in range(200) for n in range(3)]
    assert quantum([float(row[0]) for row in rows]) is not None
    trace = load_mooncake(write(mooncake(rows), "m.jsonl"))
    times = [request.arrival_s for request in trace.requests]
    assert len(set(times)) > 590
    assert times == sorted(times)
    steps = [time_of(step) / 1000 for step in range(200)]
    assert (np.searchsorted(steps, times, side="right") - 1).tolist() == [
        step for step in range(200) for _ in range(3)
    ]
    assert "spread uniformly until the next time" in trace.notes[-1]
