"""Who wants to run: admitted newcomers and streams that are paused or loaded in part, in line.

They are taken by leeway, least first: their slack and what their readers tolerate, weighted
(`urgency`). A newcomer's counts as zero at least, so that it comes after those that stall. A stream
that thinks has no reader yet: it is taken as a newcomer is, in one order with those that have not
begun (see `queueing`).

Those that are far ahead of their readers (`STOCKED`) are all alike, and the one that has come
farthest goes first: as a rule the least of it is left, and its end frees memory for the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenflow_sgl.contract import BoolArray, FloatArray, IntArray, State
from tokenflow_sgl.policy.admission import DemandAnswer
from tokenflow_sgl.policy.urgency import leeway, tolerated, turn, weights

STOCKED = 10.0
"""Seconds of leeway beyond which more of it makes no stream less urgent."""
CONSIDERED = 64
"""Candidates that one plan looks at; more could not be switched in one cycle anyway."""


class Candidate(NamedTuple):
    """How urgent one of them is.

    newcomer: it has no text, and its wait is not tolerated any more. reads: it has text. ahead: its
    leeway, at least 0 without text. turn, weight: see `urgency`. key: what sorts it among the
    streams without text.
    """

    newcomer: bool
    reads: bool
    ahead: float
    turn: float
    weight: float
    key: float


class Line(NamedTuple):
    """The first `CONSIDERED` of them, most urgent first, as arrays of one length.

    indices: In the state. textless: It has no text. held: It is not to take memory from others.
    ahead, turns, keys: See `Candidate`. weight: Likewise; None: all are alike.
    """

    indices: IntArray
    textless: BoolArray
    held: BoolArray
    ahead: FloatArray
    turns: FloatArray
    keys: FloatArray
    weight: FloatArray | None

    def candidate(self, place: int) -> Candidate:
        """The one at this place."""
        textless, ahead = self.textless.item(place), self.ahead.item(place)
        return Candidate(
            textless and ahead <= 0.0,
            not textless,
            ahead,
            self.turns.item(place),
            1.0 if self.weight is None else self.weight.item(place),
            self.keys.item(place),
        )


def in_line(state: State, admission: DemandAnswer, keys: FloatArray) -> Line:
    """The candidates by their turns, then by their keys; the held ones come last.

    Args:
        state: As it is.
        admission: What joined in this very pass, and which streams that think are held.
        keys: By which streams without text are sorted, shape (n,).
    """
    streams = state.streams
    ready = streams.paused | (streams.waiting & streams.admitted)
    if len(streams.standing.loading_index):
        # What is loaded in part is counted as free, so it needs memory as a paused stream does.
        ready |= streams.partly_loaded
    ready[admission.join] = True
    index = ready.nonzero()[0]
    # What has no text yet comes after those that stall: they were promised that they do not.
    textless, ahead = streams.textless.take(index), leeway(state).take(index)
    ahead = np.where(textless, tolerated(streams, index, ahead), ahead)
    weight = weights(streams, index)
    turns = turn(ahead, weight)
    second = np.where(textless, keys.take(index), -np.inf)
    order, behind = turns, second
    stocked = ~textless & (ahead > STOCKED)
    if stocked.any():
        order = np.where(stocked, turn(np.full_like(ahead, STOCKED), weight), turns)
        behind = np.where(stocked, -streams.generated.take(index), second)
    held = None
    if len(admission.held):
        held = np.isin(index, admission.held)
    first = _most_urgent(order, behind, held)
    return Line(
        index.take(first),
        textless.take(first),
        np.zeros(len(first), dtype=np.bool_) if held is None else held.take(first),
        ahead.take(first),
        turns.take(first),
        second.take(first),
        None if weight is None else weight.take(first),
    )


def _most_urgent(turns: FloatArray, second: FloatArray, held: BoolArray | None) -> IntArray:
    """Places of the first `CONSIDERED`: by `turns`, then `second`; the held ones come last."""
    keys = (second, turns) if held is None else (second, turns, held)
    if len(turns) <= CONSIDERED:
        return np.asarray(np.lexsort(keys))
    # A long list is not sorted for its head.
    last = turns if held is None else np.where(held, np.inf, turns)
    near = (last <= np.partition(last, CONSIDERED)[CONSIDERED]).nonzero()[0]
    order = np.lexsort([key.take(near) for key in keys])
    return np.asarray(near.take(order[:CONSIDERED]))
