"""Token deposit: when tokens that are generated early are delivered.

OrbitFlow section 3.2. What is generated goes into the deposit, and one token leaves it per interval
of the objective. An empty deposit delivers the next token as soon as it is there, and the interval
counts from then on. When the answer is complete the rest goes out at once.
"""

from __future__ import annotations

import math

import numpy as np

from tokenflow_sgl.contract import FloatArray


def delivery_times(generated: FloatArray, interval: float, *, complete: bool = True) -> FloatArray:
    """When each token is delivered.

    Args:
        generated: Seconds at which each was generated, of shape (tokens,), not falling.
        interval: Seconds between tokens that the objective asks for, >= 0.0.
        complete: The last token ends the answer.

    Returns:
        Seconds, of shape (tokens,): none before it was generated.

    Raises:
        ValueError: `interval` is negative or infinite, or the times fall.
    """
    if not (math.isfinite(interval) and interval >= 0.0):
        raise ValueError(f"interval is {interval!r}; allowed is 0 or more")
    if (np.diff(generated) < 0.0).any():
        raise ValueError("generated falls; allowed are times in their order")
    # d[j] = max(g[j], d[j - 1] + interval) is the largest g[i] + (j - i) * interval of all i <= j.
    ideal = interval * np.arange(generated.size)
    delivered: FloatArray = np.maximum.accumulate(generated - ideal) + ideal
    delivered = np.maximum(delivered, generated)  # whatever the rounding
    if complete and generated.size:
        delivered = np.minimum(delivered, generated[-1])
    return delivered


def held_tokens(
    generated: FloatArray, interval: float, now: float, *, complete: bool = False
) -> int:
    """Tokens in the deposit at a time.

    Args:
        generated: Seconds at which each token so far was generated, of shape (tokens,).
        interval: As of `delivery_times`.
        now: Seconds.
        complete: The last of these tokens ended the answer.
    """
    delivered = delivery_times(generated, interval, complete=complete)
    return int((generated <= now).sum() - (delivered <= now).sum())


def covered_until(generated: FloatArray, interval: float) -> float:
    """Until when a stream that pauses keeps its objective: its next token is due then.

    Args:
        generated: Seconds at which each token so far was generated, of shape (tokens,).
        interval: As of `delivery_times`.

    Returns:
        Seconds; minus infinity: no token was generated yet.
    """
    if not generated.size:
        return -math.inf
    return float(delivery_times(generated, interval, complete=False)[-1]) + interval
