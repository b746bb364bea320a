"""The plan that needs to know nothing: the same layers of all streams, as few as fit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokenflow_sgl.engine.layerwise.layer_plans import StreamsInStep, masks_of, needed_cells
from tokenflow_sgl.placement import Layout, any_number

SPARE = 0.05
"""Share of the device that has to be free before layers come back to it: without it a batch at the
edge would move a layer of every stream there and back as it grows."""


class EvenSpread:
    """Offloads the same layers of all streams, evenly spread, as few as possible (as FlexGen).

    Keeps how many there are, so that layers come back only when there is memory to spare.
    """

    def __init__(self) -> None:
        self._number = 0

    def layouts(self, streams: StreamsInStep) -> Sequence[Layout]:
        """The layers on the host, the same ones for each stream."""
        choices = any_number(streams.layers).choices
        for number, layout in enumerate(choices):
            masks = masks_of([layout], streams.layers).repeat(streams.rows.size, axis=1)
            spare = SPARE if number < self._number else 0.0
            needed = needed_cells(masks, streams.pages, streams.read)
            if needed <= streams.cells * (1.0 - spare):
                break
        self._number = number
        return [choices[number]] * int(np.size(streams.rows))
