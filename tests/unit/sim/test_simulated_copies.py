"""Copies by pieces in the simulator: what they cost, and how they are counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tokenflow_sgl.choices import IoBackend, MemLayout
from tokenflow_sgl.lab.profiles import DeviceProfile, PieceCosts
from tokenflow_sgl.lab.sim import EngineOptions, Simulation, SimulationError, simulate
from tokenflow_sgl.lab.sim.step import IssuedCount, SimulatedDevice
from tokenflow_sgl.lab.traces import Trace

COSTS = PieceCosts(call=1e-3, set_up=1e-4)


def test_copies_take_what_their_pieces_cost(device: DeviceProfile) -> None:
    # 10 layers, 1,000 bytes per token, a token takes 0.1 ms; pages of 4.
    known = replace(device, pieces=COSTS)
    pages = SimulatedDevice(known, page=4, backend=IoBackend.direct)
    # 40 tokens: 10 pages in 20 buffers are 200 pieces, in one call for each layer.
    assert pages.load(40, 0.0) == pytest.approx(0.020 + 0.004)
    assert pages.store(40, 0.0) == pytest.approx(0.020 + 0.004)
    assert pages.loads == IssuedCount(1, 40, pytest.approx(0.024), calls=10, pieces=200)
    assert pages.stores == IssuedCount(1, 40, pytest.approx(0.024), calls=1, pieces=200)
    both = pages.loads + pages.stores
    assert (both.transfers, both.tokens, both.calls, both.pieces) == (2, 80, 11, 400)
    apart = SimulatedDevice(known, page=4, backend=IoBackend.direct, layout=MemLayout.layer_first)
    assert apart.load(40, 0.0) == pytest.approx(0.200)
    kernel = SimulatedDevice(known, page=4)
    assert kernel.load(40, 0.0) == pytest.approx(0.004)
    # K and V of 10 pages, each by a call of its own.
    assert kernel.store(40, 0.0) == pytest.approx(0.020)


@pytest.mark.parametrize("backend", IoBackend)
def test_a_profile_without_costs_has_copies_of_bytes(
    backend: IoBackend, device: DeviceProfile
) -> None:
    copies = SimulatedDevice(device, backend=backend)
    assert copies.load(40, 0.0) == copies.store(40, 0.0) == 40 * 1000 / 1e7


def test_a_run_counts_its_copies_and_direct_ones_take_longer(
    device: DeviceProfile, trace: Callable[..., Trace]
) -> None:
    def run(costs: PieceCosts, backend: str) -> Simulation:
        options = EngineOptions(max_total_tokens=400, host_tokens=4000, hicache_io_backend=backend)
        known = replace(device, pieces=costs)
        return simulate(load, known, options, policy="tokenflow")

    load = trace(*((0.0, 50, 100, 20.0) for _ in range(8)))
    plain, direct = run(PieceCosts(), "kernel"), run(COSTS, "direct")
    assert direct.loads.pieces == 20 * direct.loads.tokens > 0
    assert direct.stores.calls == direct.stores.transfers > 0
    assert plain.loads.pieces == 0
    assert run(PieceCosts(), "direct").run.tokens.equals(plain.run.tokens)
    assert not direct.run.tokens.equals(plain.run.tokens)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"hicache_io_backend": "slow"},
            "hicache_io_backend is 'slow'; allowed is kernel or direct",
        ),
        ({"hicache_mem_layout": "x"}, "hicache_mem_layout is 'x'; allowed is page_first or"),
        ({"hicache_mem_layout": "page_first_direct"}, "allowed with the I/O backend kernel is"),
        (
            {"hicache_mem_layout": "page_head", "hicache_io_backend": "direct"},
            "allowed with the I/O backend direct is page_first_direct or layer_first",
        ),
    ],
)
def test_refuses_what_sglang_cannot_copy(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(SimulationError, match=sentence):
        EngineOptions(max_total_tokens=100, **given)  # type: ignore[arg-type]
