"""What the tests of the exchange ask with."""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.policy.admission import DemandAnswer

# The default stream: 200 tokens of context, useful band max(0.1 * 400 / 10, 3) = 4 s.
# Saturated from 3.2 s, sprinting beyond 8 s, content (while paused) above 2 s.
# An output of 4000 has a band of 40 s: other below 32 s, content above 20 s.
LONG = 4000.0
CONFIG = WorkingSetConfig()


def joined(*indices: int, held: tuple[int, ...] = ()) -> DemandAnswer:
    """Streams that admission let in in this very pass, and those that it lets displace no other."""
    return DemandAnswer(*(np.array(some, dtype=np.int64) for some in (indices, held)))
