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

HEAD_START = 300.0
"""Seconds that each newcomer counts as having waited before it came: while all wait less than that,
the shortest goes first."""


def leeway(state: State) -> FloatArray:
    """Seconds until each reader minds that no text comes, negative: since when; shape (n,).

    Before the first visible token it is what is left of the tolerance of the wait.
    """
    tolerance = state.streams.tolerance
    return state.slack if tolerance is None else state.slack + tolerance


def reader_runs_dry(state: State, seconds: float) -> bool:
    """Whether a running stream's reader has no text for so many seconds.

    An objective of time between tokens counts as text for so long at most. A stream in its own
    prefill has no text yet that could run out.
    """
    streams = state.streams
    reading = streams.read_index
    reading = reading[streams.generated.take(reading) > 0]
    if not len(reading):
        return False
    ahead = leeway(state).take(reading)
    if streams.tbt_slo is not None:
        ahead = np.fmin(ahead, streams.tbt_slo.take(reading))
    return float(ahead.min()) < seconds


def weights(streams: Streams, index: IntArray) -> FloatArray | None:
    """The weights of the streams at `index`; None: all are alike."""
    return None if streams.weight is None else streams.weight.take(index)


def differing_weights(streams: Streams, index: IntArray) -> FloatArray | None:
    """The weights of the streams at `index`; None: all of these are alike, so they say nothing."""
    weight = weights(streams, index)
    alike = weight is None or not len(weight) or bool((weight == weight[0]).all())
    return None if alike else weight


def tolerated(streams: Streams, index: IntArray, ahead: FloatArray) -> FloatArray | float:
    """What is left of the waits that the readers of the streams at `index` tolerate, seconds.

    ahead: Leeway of each, shape (m,).
    """
    if streams.tolerance is None:
        return 0.0
    return np.asarray(np.minimum(np.maximum(ahead, 0.0), streams.tolerance.take(index)))


def turn(seconds: FloatArray, weight: FloatArray | None) -> FloatArray:
    """What sorts streams by urgency, the least goes first: weighted leeway.

    Args:
        seconds: Leeway of each, shape (m,).
        weight: Of each, above 0, shape (m,); None: all are alike.

    Returns:
        With a negative leeway the wait times the weight, below 0; else the leeway over the weight.
        In both a heavier stream is the more urgent one.
    """
    if weight is None:
        return seconds
    return np.where(seconds < 0.0, seconds * weight, seconds / weight)


def response_turn(
    waited: FloatArray, seconds: FloatArray, streams: Streams, index: IntArray
) -> FloatArray:
    """What sorts newcomers, the least goes first: the weighted response ratio, negative.

    It is of the time since `HEAD_START` before each came. Those whose wait is tolerated come behind
    all others, by the same ratio.

    Args:
        waited: Seconds since each arrived, shape (m,).
        seconds: Of its prefill, above 0, shape (m,).
        streams: All of them.
        index: Which these are, shape (m,).
    """
    weight = weights(streams, index)
    since = waited + HEAD_START
    ratio = (since if weight is None else weight * since) / seconds
    if streams.tolerance is None:
        return -ratio
    late = waited >= streams.tolerance.take(index)
    return np.where(late, -ratio, 1.0 / ratio)
