"""What a delivered token is worth, given how many unread tokens its reader already has.

Two weights with one shape, 1 at first, then a linear fall to 0: Eq. 1 of TokenFlow (threshold and
slope given) and the effective-throughput weight of its section 7.1.3 (both fractions of the
output length). Eq. 1 with `tau = tau1 * L` and `alpha = 1 / ((tau2 - tau1) * L)` is the latter.

The buffer of a weight is the one that the token *meets*: unread tokens just before it, itself not
counted. The paper leaves this open. Tokens delivered together do count for one another: the j-th
of k (j = 0 .. k-1) meets `buffer + j`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from tokenflow_sgl.qos.checks import FloatArray, decay_band, non_negative, positive

TAU1 = 0.10
"""Share of the output length up to which a buffered token counts in full (7.1.3)."""
TAU2 = 0.20
"""Share of the output length from which on a buffered token counts for nothing (7.1.3)."""


def token_weight(buffer_tokens: ArrayLike, tau: ArrayLike, alpha: ArrayLike) -> FloatArray:
    """Weigh tokens by Eq. 1 of TokenFlow: 1 up to `tau`, then `max(1 - alpha (B - tau), 0)`.

    Args:
        buffer_tokens: B, the buffer that each token meets, in tokens (any shape; fractions count).
        tau: Buffer up to which a token is fully useful, in tokens (broadcast to B).
        alpha: Loss of weight per token of buffer beyond `tau` (broadcast to B).

    Returns:
        Weights in [0, 1], of the broadcast shape.

    Raises:
        ValueError: `buffer_tokens` or `tau` negative, `alpha` not positive, or any not finite.
    """
    excess = non_negative("buffer_tokens", buffer_tokens) - non_negative("tau", tau)
    fallen = 1.0 - positive("alpha", alpha) * np.maximum(excess, 0.0)
    return np.asarray(np.maximum(fallen, 0.0))


def effective_weight(
    buffer_tokens: ArrayLike, output_tokens: ArrayLike, tau1: float = TAU1, tau2: float = TAU2
) -> FloatArray:
    """Weigh tokens as effective throughput does (TokenFlow 7.1.3).

    A token counts in full while the buffer is at most `tau1 * L` and not at all from `tau2 * L` on;
    between them its weight falls linearly. For L < 10 the band is narrower than one token, so any
    two tokens that arrive together already lose weight: that is the paper's definition.

    Args:
        buffer_tokens: The buffer that each token meets, in tokens (any shape, fractions allowed).
        output_tokens: L, the total output length of the request, in tokens (broadcast).
        tau1: Lower end of the band, as a fraction of L.
        tau2: Upper end of the band, as a fraction of L.

    Returns:
        Weights in [0, 1], of the broadcast shape.

    Raises:
        ValueError: `buffer_tokens` negative, `output_tokens` not positive, any not finite, or not
            0 <= tau1 < tau2.
    """
    low, high = decay_band(tau1, tau2)
    length = positive("output_tokens", output_tokens)
    return token_weight(buffer_tokens, low * length, 1.0 / ((high - low) * length))


def together_weight(
    buffer_tokens: FloatArray, counts: FloatArray, full_until: FloatArray, zero_from: FloatArray
) -> FloatArray:
    """Sum the weights of tokens that arrive together: the hot path's kernel, without checks.

    Equal to `sum(weight(buffer + j) for j in range(count))` per stream, in closed form, so that the
    cost does not depend on the counts.

    Args:
        buffer_tokens: Buffer met by the first token of each delivery, in tokens, shape (n,).
        counts: Tokens delivered together, whole numbers >= 0 held as floats, shape (n,).
        full_until: Buffer up to which a token weighs 1 (`tau1 * L`), in tokens, shape (n,).
        zero_from: Buffer from which on it weighs 0 (`tau2 * L` > full_until), shape (n,).

    Returns:
        Summed weight of each delivery, shape (n,).
    """
    room = zero_from - buffer_tokens
    # j counts in full while buffer + j <= full_until, and in part while buffer + j < zero_from.
    full = np.floor(full_until - buffer_tokens)
    full += 1.0
    np.minimum(np.maximum(full, 0.0, out=full), counts, out=full)
    some = np.maximum(np.minimum(np.ceil(room), counts), full)
    partial = some - full
    # Arithmetic series over j = full .. some-1 of (room - j); a misplaced float at either edge of
    # the band costs nothing, for the weight is continuous there.
    mean_room = room - (full + some - 1.0) * 0.5
    result: FloatArray = full + partial * mean_room / (zero_from - full_until)
    return result
