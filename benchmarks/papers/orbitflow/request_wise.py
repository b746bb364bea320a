"""OrbitFlow's request-wise placement for a server: our solver, and no prompt waits for its sake.

    --tokenflow-layerwise request_wise:RequestWise

`--tokenflow-layerwise auto` also lets prompts wait that would slow the others down; OrbitFlow, and
the simulator of its evaluation, let all join for which the batch has a row and tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenflow_sgl.engine.layerwise.layer_plans import StreamsInStep
from tokenflow_sgl.engine.layerwise.solved_layers import SolvedLayers
from tokenflow_sgl.placement import Layout, kernels_of


class RequestWise:
    """The planner of `auto`, which is not asked about prompts: it has no `carries`."""

    def __init__(self) -> None:
        self._solved = SolvedLayers(kernels_of(compiled=True))
        self._solved.compile()

    def layouts(self, streams: StreamsInStep) -> Sequence[Layout]:
        """Those with which the next decode steps are shortest."""
        return self._solved.layouts(streams)
