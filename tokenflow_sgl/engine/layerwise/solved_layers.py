"""OrbitFlow's plans in the engine: the layers with which the next decode steps are shortest.

The solver pauses no stream: SGLang decides which streams run. So where no placement fits, and as
long as nothing was measured, the even spread decides.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokenflow_sgl.contract import IntArray
from tokenflow_sgl.engine.layerwise.even_spread import EvenSpread
from tokenflow_sgl.engine.layerwise.layer_plans import StreamsInStep, masks_of, needed_cells
from tokenflow_sgl.engine.layerwise.link_clock import StepSpeeds
from tokenflow_sgl.engine.layerwise.prompt_admission import JoiningPrompt, machine_of, pays
from tokenflow_sgl.placement import (
    NEW,
    Installed,
    Kernels,
    Layout,
    Layouts,
    SearchEffort,
    for_batch,
    solve,
)

AHEAD = 16
"""Decode steps for whose end a plan is made, as in `placement.plan_terms.PlacementTerms`."""
WINDOW = 256
"""Steps after which a plan is made anew at the latest."""
MISMATCH = 0.2
"""Share by which what is measured may differ from what the plan was made with."""


class SolvedLayers:
    """Plans layers by OrbitFlow's controller and `placement.solver`.

    A plan stands until a stream comes or goes, it does not fit any more, layers or link are much
    faster or slower than it took them to be, or it is old. Streams that are not in a step keep
    their layers: they will be in the next.

    Args:
        kernels: The solver's inner loops; None: not compiled.

    Attributes:
        seconds: Of a decode step of the streams as the last plan has them; 0.0: there is none.
    """

    def __init__(self, kernels: Kernels | None = None) -> None:
        self._kernels, self._even = kernels, EvenSpread()
        self._of: dict[int, Layout] = {}
        self._speeds: StepSpeeds | None = None
        self._age = 0
        self.seconds = 0.0

    def layouts(self, streams: StreamsInStep) -> Sequence[Layout]:
        """Layers on the host by the plan that stands, or a new one."""
        self._age += 1
        if streams.speeds is None or not streams.speeds.layer:
            return self._even.layouts(streams)
        rows = streams.rows.tolist()
        if not self._stands(streams, rows):
            self._of = self._made(streams, streams.speeds, rows)
        return [self._of[row] for row in rows]

    def compile(self) -> None:
        """Compile the solver now, which takes seconds, and not when streams run."""
        if self._kernels is None:
            return
        layouts, sizes = for_batch(3)(4), np.array([3.0, 4.0, 5.0])
        machine = machine_of(4, 30, StepSpeeds(1.0, 2.0))
        installed = Installed(layouts, np.full(3, NEW), float(AHEAD))
        every = SearchEffort(near=0.0, search=20, pairs=True, branch=20)
        solve(sizes, layouts, machine, installed=installed, effort=every, kernels=self._kernels)

    def carries(self, newcomer: JoiningPrompt) -> bool:
        """Whether decode steps give at least as many tokens per second with a prompt as without."""
        return pays(newcomer, self._kernels)

    def _stands(self, streams: StreamsInStep, rows: list[int]) -> bool:
        speeds, before = streams.speeds, self._speeds
        if speeds is None or before is None or self._age > WINDOW:
            return False
        # SGLang gives the row of a stream that has ended to the next one.
        if streams.fresh.any() or set(rows) != set(self._of):
            return False
        for now, then in ((speeds.layer, before.layer), (speeds.pages, before.pages)):
            if abs(now - then) > MISMATCH * then:
                return False
        masks = masks_of([self._of[row] for row in rows], streams.layers)
        return needed_cells(masks, streams.pages, streams.pages) <= streams.cells

    def _made(
        self, streams: StreamsInStep, speeds: StepSpeeds, rows: list[int]
    ) -> dict[int, Layout]:
        layers = streams.layers
        layouts = for_batch(len(rows))(layers)
        machine = machine_of(layers, streams.cells, speeds)
        self._speeds, self._age = speeds, 0
        installed = Installed(layouts, self._now(streams, layouts), float(AHEAD))
        grown = streams.pages + -(-AHEAD // streams.page)
        for pages in (grown, streams.pages):
            found = solve(
                pages.astype(np.float64),
                layouts,
                machine,
                installed=installed,
                kernels=self._kernels,
            )
            if found is not None:
                self.seconds = found.seconds
                chosen = [layouts.choices[choice] for choice in found.layout]
                return dict(zip(rows, chosen, strict=True))
        self.seconds = 0.0
        return dict(zip(rows, self._even.layouts(streams), strict=True))

    @staticmethod
    def _now(streams: StreamsInStep, layouts: Layouts) -> IntArray:
        """The choice that each stream has now; `NEW`: it has none of them."""
        known = {layout: choice for choice, layout in enumerate(layouts.choices)}
        return np.array([known.get(layout, NEW) for layout in streams.layouts])
