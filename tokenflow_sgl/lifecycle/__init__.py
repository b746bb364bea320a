"""What happens to a stream between its arrival and its end, without an engine.

`phases` says where each stream stands, `decider` asks the policy, and `apply` carries a decision
out through an `Actuator`, of which the live engine has one and the simulator another.
"""

from tokenflow_sgl.lifecycle.actuator import Actuator, Missing
from tokenflow_sgl.lifecycle.apply import Applied, apply
from tokenflow_sgl.lifecycle.cached_prefixes import CachedPrefixes
from tokenflow_sgl.lifecycle.decider import Decider
from tokenflow_sgl.lifecycle.paused_copies import PausedCopies
from tokenflow_sgl.lifecycle.phases import NOT_HERE, Phases
from tokenflow_sgl.lifecycle.prefetch import give_up
from tokenflow_sgl.lifecycle.shared_prefixes import SharedPrefixes

__all__ = [
    "NOT_HERE",
    "Actuator",
    "Applied",
    "CachedPrefixes",
    "Decider",
    "Missing",
    "PausedCopies",
    "Phases",
    "SharedPrefixes",
    "apply",
    "give_up",
]
