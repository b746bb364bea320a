"""Layers with a sliding window in the simulator: a pool of their own, and who asks it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tokenflow_sgl.contract import State, Tier, Window
from tokenflow_sgl.lab.sim import SimulationError, simulate
from tokenflow_sgl.lab.sim.simulated_state import SimulatedStates
from tokenflow_sgl.lab.sim.window_pool import EVICTION_INTERVAL, WindowPool

BURST = [(0.0, 20, 300, 10.0)] * 12
"""Twelve readers of 10 tokens/s: their windows grow with their answers."""
ROOMY = {"max_total_tokens": 20_000, "host_tokens": 40_000, "chunked_prefill_size": 512}
MOST = 2 * 16 + EVICTION_INTERVAL
NARROW = {"sliding_window": 16, "swa_full_tokens_ratio": 0.05}
"""1,000 tokens: windows of six streams."""


def test_a_stream_holds_its_last_tokens() -> None:
    pool = WindowPool(1000, 16, 64)
    assert pool.need == Window(MOST, 64)
    lengths = np.array([10, 1000])
    assert pool.free(lengths, 0) == 1000 - 10 - MOST
    assert pool.free(lengths, 50) == 1000 - 10 - MOST - 50
    assert pool.growth(lengths, 4) == 4
    assert pool.reserve(1000, 10, 64) == 64 - 16 + 16 + 1


def test_it_holds_whole_pages() -> None:
    pool = WindowPool(1600, 16, 64, 16)
    assert pool.need == Window(MOST + 16, 64)
    lengths = np.array([10, 15, 16, 1000])
    assert pool.held(lengths) == 3 * 16 + MOST + 16
    assert pool.growth(lengths, 1) == 16, "the third begins a page"
    assert pool.free(lengths[:1], 17) == 1600 - 16 - 32
    assert pool.reserve(1000, 10, 64) == 64 - 16 + 16 + 16
    assert (pool.steps(2, 31), pool.steps(2, 64)) == (0, 32)


def test_a_wide_pool_changes_nothing(times_of, trace, device, options) -> None:
    rows = trace(*BURST)
    for policy in ("fcfs", "tokenflow"):
        plain = simulate(rows, device, options(**ROOMY), policy=policy)
        wide = options(**ROOMY, sliding_window=16, swa_full_tokens_ratio=1.0)
        assert times_of(simulate(rows, device, wide, policy=policy)) == times_of(plain)


def test_stock_throws_streams_out_where_windows_are_short(trace, device, options) -> None:
    # One by one: each finds the room that the windows of those before it do not take yet.
    rows = trace(*[(0.2 * number, *BURST[0][1:]) for number in range(12)])
    assert simulate(rows, device, options(**ROOMY), policy="fcfs").retracted == 0
    assert simulate(rows, device, options(**ROOMY, **NARROW), policy="fcfs").retracted > 0


def test_the_policy_pauses_streams_instead(times_of, trace, device, options) -> None:
    rows = trace(*BURST)
    done = simulate(rows, device, options(**ROOMY, **NARROW), policy="tokenflow")
    assert done.retracted == 0
    assert done.preempted > 0
    assert [len(times) for times in times_of(done).values()] == [300] * 12


def test_because_it_is_told(trace, device, options, monkeypatch) -> None:
    """The control: what it does not know of it cannot plan for."""

    seen = SimulatedStates.state

    def blind(self: SimulatedStates, *args: Any) -> State:
        state = seen(self, *args)
        device_kv, host_kv = (Tier(kv=tier.kv) for tier in (state.memory.device, state.memory.host))
        memory = dataclasses.replace(state.memory, device=device_kv, host=host_kv, window=Window())
        return dataclasses.replace(state, memory=memory)

    monkeypatch.setattr(SimulatedStates, "state", blind)
    done = simulate(trace(*BURST), device, options(**ROOMY, **NARROW), policy="tokenflow")
    assert done.retracted > 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sliding_window": -1}, "sliding_window is -1; allowed is 0 or more"),
        ({"swa_full_tokens_ratio": 0.0}, "swa_full_tokens_ratio is 0.0; allowed is above 0"),
    ],
)
def test_impossible_windows_are_refused(options, given, said) -> None:
    with pytest.raises(SimulationError, match=said):
        options(**given)
