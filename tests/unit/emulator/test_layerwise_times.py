"""Layer-wise KV on the emulated device: decode steps take what the planner's fluid model says.

The executor, its copies, the device and its streams are the real ones, on a virtual clock; only
SGLang around them is not there.
"""

import warnings
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tokenflow_sgl_emulator import platform
    from tokenflow_sgl_emulator.timed.step_time import take_step

from tokenflow_sgl.engine.layerwise.copiers import TorchCopier
from tokenflow_sgl.engine.layerwise.even_spread import EvenSpread
from tokenflow_sgl.engine.layerwise.kv_on_both_sides import CellShape, KvOnBothSides
from tokenflow_sgl.engine.layerwise.layer_executor import LayerExecutor, StepRow
from tokenflow_sgl.engine.layerwise.layer_plans import StreamsInStep, layout_of
from tokenflow_sgl.engine.layerwise.page_places import PagePlaces
from tokenflow_sgl.engine.layerwise.solved_layers import SolvedLayers
from tokenflow_sgl.lab.profiles import DecodeTable, DeviceProfile, Link, PrefillTable
from tokenflow_sgl.placement import Layout, Layouts, Machine, Staging, decode_step, half_phases
from tokenflow_sgl_emulator.timed import clock as clock_module
from tokenflow_sgl_emulator.timed import device, timed_streams
from tokenflow_sgl_emulator.timed.clock import VirtualClock
from tokenflow_sgl_emulator.timed.device import EmulatedDevice

PAGE_S = 0.001
"""Seconds in which the link moves a page of one layer."""
PREFILL_S = 0.9
"""Seconds that a prefill computes."""
FAST = 1e15
"""Bytes per second to the host: the model counts no time for new tokens."""


class Fixed:
    """The layers of each row."""

    def __init__(self, *layouts: Layout) -> None:
        self._of = dict(enumerate(layouts, start=1))

    def layouts(self, streams: StreamsInStep) -> Sequence[Layout]:
        return [self._of[row] for row in streams.rows.tolist()]


class Bench:
    """Streams with pages of one token, on a device whose layers take `layer` pages of link time."""

    def __init__(
        self,
        monkeypatch: Any,
        layers: int,
        layer: float,
        cells: int,
        planner: Any,
        to_host: float = FAST,
    ) -> None:
        self.profile = DeviceProfile(
            device="toy",
            model="toy-model",
            source="made up for a test",
            layers=layers,
            kv_bytes_per_token=1000 * layers,
            device_memory=1 << 35,
            weight_bytes=1 << 30,
            kv_pool_tokens=4000,
            host_pool_tokens=8000,
            host_to_device=Link(bandwidth=1000 / PAGE_S, latency=0.0),
            device_to_host=Link(bandwidth=to_host, latency=0.0),
            decode=DecodeTable((1.0, 64.0), (1.0, 1e4), ((layers * layer * PAGE_S,) * 2,) * 2),
            prefill=PrefillTable((1.0, 1000.0), (1.0, 1e4), ((1e-3, 1e-3), (0.01, 0.01))),
        )
        made = EmulatedDevice(self.profile, 1.0)
        clock = VirtualClock()
        for module in (timed_streams, device):
            monkeypatch.setattr(module, "now", clock.now)
        monkeypatch.setattr(timed_streams, "the_clock", lambda: clock)
        monkeypatch.setattr(clock_module, "the_clock", lambda: clock)
        monkeypatch.setattr(timed_streams, "_default", timed_streams.Stream())
        for name in ("Stream", "Event", "StreamContext", "current_stream"):
            monkeypatch.setattr(torch.cpu, name, getattr(timed_streams, name))
        monkeypatch.setattr(platform, "timing_is_on", lambda: True)
        monkeypatch.setattr(platform, "the_device", lambda: made)
        self._device, self._layers = made, layers
        memory = KvOnBothSides(
            cells,
            4000 * layers,
            CellShape(1, (1, 2), (1, 2), torch.float32),
            device="cpu",
            copier=TorchCopier(platform.EmulatorPlatform().kv_copy),
        )
        self.executor = LayerExecutor(
            PagePlaces(layers, 4001, cells, 4000 * layers), 1, planner, EvenSpread(), memory
        )
        self._places: dict[int, list[int]] = {}
        self._next = 1

    def step(self, new: dict[int, int]) -> float:
        """Compute so many tokens of each row; returns virtual seconds."""
        rows = []
        for row, tokens in new.items():
            places = self._places.setdefault(row, [])
            places += range(self._next, self._next + tokens)
            self._next += tokens
            rows.append(StepRow(row, np.array(places), tokens))
        stream = timed_streams.current_stream()
        stream.synchronize()
        began = timed_streams.now()
        self.executor.begin(rows)
        hooks = SimpleNamespace(before_layer=self.executor.before, after_layer=self.executor.after)
        if max(new.values()) > 1:
            seconds: Callable[[DeviceProfile], float] = lambda _: PREFILL_S  # noqa: E731
        else:
            seconds = lambda profile: profile.decode_seconds(len(new), 100)  # noqa: E731
        work: Any = SimpleNamespace(seconds=seconds)
        take_step(self._device, work, range(self._layers), self._layers, None, hooks)
        stream.synchronize()
        return timed_streams.now() - began

    def grow(self, row: int, tokens: int) -> None:
        """A stream that has so many tokens."""
        self.step({row: tokens})


THIRD, FOURTH = (3, 6, 9), (4, 8)


@pytest.mark.parametrize(
    ("sizes", "layouts", "stall"),
    [
        ((3, 6), (THIRD, THIRD), 9),
        ((3, 6), ((), THIRD), 0),
        ((3, 6), (FOURTH, THIRD), 0),
        ((4, 6), (THIRD, THIRD), 12),
        ((4, 6), ((), THIRD), 0),
        ((4, 6), (FOURTH, THIRD), 2),
    ],
)
def test_fig_3_of_orbitflow(monkeypatch, sizes, layouts, stall) -> None:
    bench = Bench(monkeypatch, layers=9, layer=3.0, cells=500, planner=Fixed(*layouts))
    for row, tokens in enumerate(sizes, start=1):
        bench.grow(row, tokens)
    seconds = bench.step({1: 1, 2: 1})
    assert seconds == pytest.approx((27 + stall) * PAGE_S, abs=1e-7)


@pytest.mark.parametrize("copying", [0.05, 0.25, 0.6])
def test_layers_of_a_prefill_leave_while_others_compute(monkeypatch, copying) -> None:
    """LayerKV's prefill: six of nine layers stay, and the others leave under the computing.

    A layer on the host waits until the one before has left the staging cells: two layers of 0.1 s
    lie between. What the last one brings to the host is waited for by the next step.
    """
    tokens = 100
    to_host = 1000 * tokens / copying
    bench = Bench(monkeypatch, 9, 3.0, 7 * tokens, Fixed(THIRD), to_host)
    seconds = bench.step({1: tokens})
    assert seconds == pytest.approx(PREFILL_S + 2 * max(copying - 0.2, 0.0))
    assert bench.executor.places.device.used == 7 * tokens, "of 9, with the staging cells"


@pytest.mark.parametrize("seed", range(12))
def test_any_plan_stalls_as_the_model_says_but_for_a_page_a_layer(monkeypatch, seed) -> None:
    chance = np.random.default_rng(seed)
    layers, layer = 8, float(chance.integers(1, 30))
    layouts: Layouts = half_phases(layers)
    sizes = chance.integers(1, 40, int(chance.integers(1, 7)))
    layout = chance.integers(0, len(layouts), sizes.size)
    chosen = [layouts.choices[choice] for choice in layout]
    bench = Bench(monkeypatch, layers, layer, 5000, Fixed(*chosen))
    for row, tokens in enumerate(sizes.tolist(), start=1):
        bench.grow(row, tokens)
    machine = Machine(np.full(layers, layer * PAGE_S), 1.0 / PAGE_S, memory=1e9)
    every = {row: 1 for row in range(1, sizes.size + 1)}
    for number in range(4):
        said = decode_step(sizes.astype(float) + number, layout, layouts, machine).seconds
        took = bench.step(every)
        # The first step measures: until then all goes ahead as soon as it may.
        if number:
            assert said - 1e-7 <= took <= said + layers * PAGE_S + 1e-7


@pytest.mark.long
def test_a_batch_that_does_not_fit_takes_what_the_solver_says(monkeypatch) -> None:
    """The device has 160 of 225 cells, as in the prototype."""
    planner, layers, tokens, layer = SolvedLayers(), 9, 200, 150.0
    every = {row: 1 for row in range(1, 6)}
    whole = len(every) * (tokens + 12) * layers
    cells = whole * 160 // 225
    bench = Bench(monkeypatch, layers, layer, cells, planner)
    for row in every:
        bench.grow(row, tokens)
    took = [bench.step(every) for _ in range(12)]
    chosen = [layout_of(bench.executor.plans.masks[row]) for row in every]
    layouts = Layouts(layers, tuple(dict.fromkeys(chosen)))
    machine = Machine(np.full(layers, layer * PAGE_S), 1.0 / PAGE_S, cells, Staging.stream)
    said = decode_step(
        np.full(len(every), tokens + 11.0),
        np.array([layouts.index(each) for each in chosen]),
        layouts,
        machine,
    )
    assert set(chosen) != {chosen[0]}, "the solver's: an even spread has the same for all"
    assert took[-1] == pytest.approx(said.seconds, rel=0.01)
