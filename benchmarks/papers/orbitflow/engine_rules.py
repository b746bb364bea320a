"""Rules of `--tokenflow-layerwise` in the simulator of placements: the engine's own functions.

`Even` places as `even` does, `Pays` lets prompts wait as `auto` does.
"""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.contract import FloatArray, IntArray
from tokenflow_sgl.engine.layerwise.even_spread import EvenSpread
from tokenflow_sgl.engine.layerwise.layer_plans import StreamsInStep
from tokenflow_sgl.engine.layerwise.link_clock import StepSpeeds
from tokenflow_sgl.engine.layerwise.prompt_admission import JoiningPrompt, has_waited, pays
from tokenflow_sgl.lab.sim.layer_wise import BatchNewcomer
from tokenflow_sgl.lab.sim.layer_wise.placers import MachineOf
from tokenflow_sgl.placement import Kernels, Layouts, Machine, blocks_after


class Even:
    """The same layers of all streams, evenly spread, and as few as fit: a `Baseline`."""

    def __init__(self) -> None:
        self._spread = EvenSpread()

    def __call__(
        self, sizes: FloatArray, layouts: Layouts, machine: Machine, kernels: Kernels | None = None
    ) -> IntArray:
        """The choice of each stream; `layouts` has any number of layers."""
        every, none = np.ones(sizes.size, dtype=np.bool_), np.zeros(sizes.size, dtype=np.bool_)
        pages = sizes.astype(np.int64)
        streams = StreamsInStep(
            rows=np.arange(sizes.size),
            pages=pages,
            read=pages.copy(),
            running=every,
            fresh=none.copy(),
            paused=none,
            layouts=((),) * sizes.size,
            layers=machine.layers,
            cells=int(machine.memory),
        )
        return np.array([layouts.index(layout) for layout in self._spread.layouts(streams)])


class Pays:
    """A prompt waits where decode steps would give fewer tokens per second with it: an `Admission`.

    The engine measures its speeds, the link's when KV lies on the host for the first time. Until
    then all join; from then on the speeds are the device's here.

    Args:
        machine: Makes the machine of a step.
        block: Tokens of a page.
        kernels: The solver's inner loops; None: not compiled.
    """

    def __init__(self, machine: MachineOf, block: int, kernels: Kernels | None = None) -> None:
        self._machine, self._block, self._kernels = machine, block, kernels
        self._first: dict[int, frozenset[int]] = {}
        self._said: tuple[int, frozenset[int]] | None = None
        self._measured = False

    def joins(self, newcomer: BatchNewcomer) -> bool:
        """As the engine says; it asks anew when a stream has come or gone."""
        batch = frozenset(newcomer.batch)
        if self._said == (newcomer.slot, batch):
            return False
        if self._carried(newcomer) or self._has_waited(newcomer.slot, batch):
            return True
        self._said = newcomer.slot, batch
        return False

    def _carried(self, newcomer: BatchNewcomer) -> bool:
        if len(newcomer.batch) < 2:
            return True
        pages = blocks_after(np.append(newcomer.whole, newcomer.tokens), 0, self._block)
        machine = self._machine(len(newcomer.batch), int(newcomer.held.sum()))
        held = blocks_after(newcomer.held, 0, self._block).sum()
        self._measured = self._measured or bool(held * machine.layers > machine.memory)
        if not self._measured or pages.sum() * machine.layers <= machine.memory:
            return True
        speeds = StepSpeeds(machine.computing / machine.layers, machine.bandwidth)
        joined = pages[:-1].astype(np.int64)
        prompt = JoiningPrompt(int(pages[-1]), joined, machine.layers, int(machine.memory), speeds)
        return pays(prompt, self._kernels)

    def _has_waited(self, slot: int, batch: frozenset[int]) -> bool:
        if slot not in self._first:
            self._first[slot] = batch
            return False
        return has_waited(self._first[slot], batch)
