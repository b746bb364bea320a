"""What decides which layers lie on the host, by name."""

from __future__ import annotations

import importlib.util

from tokenflow_sgl.engine.layerwise.even_spread import EvenSpread
from tokenflow_sgl.engine.layerwise.layer_plans import LayerPlanner
from tokenflow_sgl.engine.layerwise.solved_layers import SolvedLayers
from tokenflow_sgl.placement import kernels_of
from tokenflow_sgl.policy.named_class import load_class

PLANNERS = ("auto", "even")
"""Names that `make_layer_planner` knows, beside package.module:Class."""


def make_layer_planner(name: str) -> LayerPlanner:
    """The planner of a name.

    Args:
        name: One of `PLANNERS`, or package.module:Class; the class is called without arguments.

    Raises:
        ConfigError: The name leads nowhere, or to something that does not plan.
    """
    if name == "even":
        return EvenSpread()
    if name == "auto":
        numba = importlib.util.find_spec("numba") is not None
        return SolvedLayers(kernels_of(compiled=True) if numba else None)
    planner: LayerPlanner = load_class(name, "layerwise", ("off", *PLANNERS), ("layouts",))
    return planner
