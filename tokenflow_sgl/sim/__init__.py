"""What a trace would do on a device under a policy: SGLang's scheduling in virtual time."""

from tokenflow_sgl.sim.bounds import Bounds, bounds
from tokenflow_sgl.sim.clairvoyant import Reference, clairvoyant
from tokenflow_sgl.sim.options import EngineOptions, SimulationError
from tokenflow_sgl.sim.run import Simulation, simulate
from tokenflow_sgl.sim.sweep import parse_sweep, sweep

__all__ = [
    "Bounds",
    "EngineOptions",
    "Reference",
    "Simulation",
    "SimulationError",
    "bounds",
    "clairvoyant",
    "parse_sweep",
    "simulate",
    "sweep",
]
