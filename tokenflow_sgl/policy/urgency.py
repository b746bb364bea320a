"""How urgent streams are: what wait their readers tolerate, and what their classes weigh.

Slack says when a reader runs out of text. Two rules make urgency of it, here and nowhere else:

- *Tolerance* moves the moment from which a wait counts: the leeway is slack and tolerance.
- *Weight* makes a second of waiting count so many times: among streams that wait, the largest
  product of weight and wait goes first (L. Kleinrock, "A delay dependent queue discipline", Naval
  Research Logistics Quarterly 1964). The product of a light stream grows, too, so none starves:
  when it goes, no stream of `k` times its weight has waited longer than a `k`-th of its wait.

Streams whose weights are equal are ordered as if there were none, and a margin (hysteresis) counts
relatively: in full between equals, half of it where the other has twice the weight.
"""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.contract import FloatArray, IntArray, State, Streams


def leeway(state: State) -> FloatArray:
    """Seconds until each reader minds that no text comes, negative: since when; shape (n,).

    Before the first visible token it is what is left of the tolerance of the wait.
    """
    tolerance = state.streams.tolerance
    return state.slack if tolerance is None else state.slack + tolerance


def weights(streams: Streams, index: IntArray) -> FloatArray:
    """The weights of the streams at `index`; 1 where all are alike."""
    return np.ones(len(index)) if streams.weight is None else streams.weight[index]


def tolerances(streams: Streams, index: IntArray) -> FloatArray:
    """What the readers of the streams at `index` tolerate, seconds; 0 where none do."""
    return np.zeros(len(index)) if streams.tolerance is None else streams.tolerance[index]


def turn(seconds: FloatArray, weight: FloatArray) -> FloatArray:
    """What sorts streams by urgency, the least goes first: weighted leeway.

    Args:
        seconds: Leeway of each, shape (m,).
        weight: Of each, above 0, shape (m,).

    Returns:
        With a negative leeway the wait times the weight, below 0; else the leeway over the weight.
        In both a heavier stream is the more urgent one.
    """
    return np.where(seconds < 0.0, seconds * weight, seconds / weight)


def response_turn(
    waited: FloatArray, seconds: FloatArray, streams: Streams, index: IntArray
) -> FloatArray:
    """What sorts newcomers, the least goes first: the weighted response ratio, negative.

    Those whose wait is tolerated come behind all others, by the same ratio.

    Args:
        waited: Seconds since each arrived, shape (m,).
        seconds: Of its prefill, above 0, shape (m,).
        streams: All of them.
        index: Which these are, shape (m,).
    """
    weight = weights(streams, index)
    ratio = weight * waited / seconds
    if streams.tolerance is None:
        return -ratio
    late = waited - tolerances(streams, index)
    behind = 1.0 / np.maximum(ratio, np.finfo(np.float64).tiny)
    return np.where(late >= 0.0, -weight * late / seconds, behind)
