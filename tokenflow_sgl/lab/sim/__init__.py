"""What a trace would do on a device under a policy: SGLang's scheduling in virtual time."""

from tokenflow_sgl.lab.sim.engine_options import EngineOptions, SimulationError
from tokenflow_sgl.lab.sim.run import Simulation, simulate

__all__ = ["EngineOptions", "Simulation", "SimulationError", "simulate"]
