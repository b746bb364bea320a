"""How a reader plays back a stream of tokens: delivery times in, reading times out.

The reader reads the first token when it arrives, then one every `1 / rate` seconds. When the next
token is not there in time, playback stalls and the reader's clock stops until it is. So

    c_1 = t_1,    c_j = max(t_j, c_{j-1} + 1 / rate)

and not `t_1 + (j - 1) / rate`, which would let a reader catch up on time that it lost. Substituting
`s_j = t_j - (j - 1) / rate` gives `c_j = max(s_1 .. s_j) + (j - 1) / rate`: one running maximum.
Source: TokenFlow section 3.2 (reading speed, buffer, Rebuffer), with the stalls spelt out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokenflow_sgl.qos.checks import FloatArray, positive, token_times

NOTICEABLE_STALL = 0.1
"""Seconds for which playback must stand still, at a time, to be *counted* as a stall.

A tenth of a second is the limit of what a person perceives as instantaneous (R. B. Miller, AFIPS
1968). A count of shorter stalls would describe the jitter of a server's steps and not its readers:
a server that pauses streams has many stalls of a millisecond and few of a second. Stalled *time* is
summed without a threshold, because it adds up and Eq. 2 charges it. Only stalled time shows a
stream that is slightly slower than its reader at every token.
"""
_ROUNDING = 1e-6
"""Clocks that count from 1970 are off by 2.4e-7 s: a stall of just the threshold is not longer."""


@dataclass(frozen=True, slots=True, eq=False)
class Playback:
    """One stream as its reader experiences it. All arrays have one entry per token.

    Attributes:
        consumed: When the reader begins the token, in seconds (the clock of the delivery times).
        stalls: How long playback stood still waiting for the token, in seconds; 0 for the first.
        buffer_met: Unread tokens that the token found on arrival, itself not counted; the token
            being read counts with the fraction that is left of it.
    """

    consumed: FloatArray
    stalls: FloatArray
    buffer_met: FloatArray


def noticed(
    stalls: FloatArray, threshold: float | FloatArray = NOTICEABLE_STALL
) -> NDArray[np.bool_]:
    """Which stalls (seconds) are counted: those longer than the threshold, in seconds."""
    return stalls > threshold + _ROUNDING


def play(times: ArrayLike, rate: float) -> Playback:
    """Play a stream back to its reader: when each token is read, and how long it stalls.

    Args:
        times: Delivery time of each token in seconds, never decreasing, shape (n,), n >= 0. Tokens
            delivered together have equal times.
        rate: Reading speed in tokens/s.

    Returns:
        The playback, arrays of shape (n,).

    Raises:
        ValueError: `times` not 1-D, not finite or decreasing; `rate` not finite and > 0.
    """
    times = token_times(times)
    rate = float(positive("rate", rate))
    if not times.size:
        empty = np.empty(0)
        return Playback(consumed=empty, stalls=empty, buffer_met=empty)
    offsets = np.arange(times.size) / rate
    shifted = times - times[0] - offsets  # from the first token, to keep digits of large clocks
    furthest = np.maximum.accumulate(shifted)
    ahead = furthest[:-1] - shifted[1:]  # seconds until the reader would have needed token j
    zero = np.zeros(1)
    return Playback(
        consumed=furthest + offsets + times[0],
        stalls=np.concatenate((zero, np.maximum(-ahead, 0.0))),
        buffer_met=np.concatenate((zero, np.maximum(ahead, 0.0) * rate)),
    )


def consumed_at(times: ArrayLike, rate: float) -> FloatArray:
    """Return when the reader begins each token: the playback curve for plots.

    `np.searchsorted(consumed, t, side="right")` is the number of tokens begun by time t.

    Args:
        times: Delivery time of each token in seconds, never decreasing, shape (n,), n >= 0.
        rate: Reading speed in tokens/s.

    Returns:
        Reading times in seconds, shape (n,), at least `1 / rate` apart.

    Raises:
        ValueError: As `play`.
    """
    return play(times, rate).consumed
