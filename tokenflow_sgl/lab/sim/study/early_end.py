"""Ends a simulation as soon as too many streams have missed the goal for its outcome to change.

Only what is certain counts: a stream without its first token has missed a limit that is over, and
one whose reader has run dry stalls at least until now, for every later token comes later. So a rate
that fails is found to fail as in the whole run, mostly after a fraction of it: the more load there
is, the sooner, and the longer the whole run would take.
"""

from __future__ import annotations

import math

import numpy as np

from tokenflow_sgl.lab.report.goal import Goal
from tokenflow_sgl.lab.runs.recording import BoolArray
from tokenflow_sgl.lab.sim.simulated_streams import SimulatedStreams

ROUNDING_S = 1e-6
"""By so much a limit is missed for certain, however its seconds are added up."""


class TooManyMissedError(Exception):
    """The goal cannot be met any more.

    Attributes:
        missed: Streams that have missed it for certain.
    """

    def __init__(self, missed: int) -> None:
        super().__init__(f"{missed} streams have missed the goal")
        self.missed = missed


class EarlyEnd:
    """Told of one run's progress, ends it.

    Args:
        goal: That a stream has to meet.
        allowed: Streams of the run that may miss it without the share being missed for certain.

    Attributes:
        missed: Streams that have missed it for certain, shape (n,); empty before the first look.
    """

    def __init__(self, goal: Goal, allowed: int) -> None:
        self._allowed = allowed
        limit = {name: goal.limits.get(name, math.inf) + ROUNDING_S for name in _LOOKED_AT}
        self._first, self._visible = limit["ttft"], limit["ttfvt"]
        # One stall of that length is enough for either.
        self._dry = min(limit["stall"], limit["stalled"])
        self.missed: BoolArray = np.zeros(0, dtype=np.bool_)

    def __call__(self, now: float, streams: SimulatedStreams) -> None:
        """Look at the streams at a moment whose tokens have all been given.

        Raises:
            TooManyMissedError: More have missed a limit than are allowed.
        """
        if not len(self.missed):
            self.missed = np.zeros(len(streams), dtype=np.bool_)
        given, hidden = streams.generated, streams.reasoning
        # A NaN is a stream that was not sent yet, or a first text that is not known: later than
        # nothing.
        waited, came = now - streams.sent, streams.first_text - streams.sent
        late = (waited > self._first) & (given == 0)
        late |= (came > self._first) & (hidden == 0)
        late |= (waited > self._visible) & (given <= hidden)
        late |= came > self._visible
        # When a reader runs dry is known where all tokens are.
        reads = (given == streams.known) & (given > hidden) & (given < streams.answer)
        late |= reads & (now - streams.due > self._dry)
        self.missed |= late
        missed = int(np.count_nonzero(self.missed))
        if missed > self._allowed:
            raise TooManyMissedError(missed)


_LOOKED_AT = ("ttft", "ttfvt", "stall", "stalled")


def allowed_misses(share: float, streams: int) -> int:
    """How many of so many streams may miss the goal while the share that has to meet it does."""
    allowed = math.floor((1.0 - share) * streams)
    # As the search compares them, whatever the rounding of the line above.
    while (streams - allowed - 1) / streams >= share:
        allowed += 1
    while allowed > 0 and (streams - allowed) / streams < share:
        allowed -= 1
    return allowed
