"""What one recorded stream was worth to its reader: delivery times in, stalls and weights out.

A reader sees nothing of reasoning: reading starts at the first visible token, and buffers, stalls
and weights are those of the visible tokens.

The offline twin of `reader`: exact where the live bank must estimate (it knows the output length).
All times are in seconds on one clock, which may start anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from tokenflow_sgl.qos.checks import (
    FloatArray,
    decay_band,
    finite,
    non_negative,
    positive,
    whole,
)
from tokenflow_sgl.qos.checks import token_times as delivery_times
from tokenflow_sgl.qos.playback import NOTICEABLE_STALL, noticed, play
from tokenflow_sgl.qos.summary import Summary
from tokenflow_sgl.qos.weights import TAU1, TAU2, effective_weight, token_weight


@dataclass(frozen=True, slots=True)
class StreamQoS:
    """How the reader of one stream fared: TTFT, stalls, effective tokens.

    Attributes:
        rate: Reading speed, tokens/s.
        arrival: Arrival of the request, seconds.
        end: Last token, or the end of the recording if output was still due then, seconds.
        delivered: Tokens delivered.
        output_tokens: Total output length L; more than `delivered` if the recording ended first.
        ttft: Time to first token, seconds. Without any token: the time waited until `end`, a lower
            bound, so that a request that was never served does not improve a mean.
        ttfvt: Time to first visible token, seconds; without one the time waited, likewise.
        stall_seconds: Rebuffer_i of Eq. 2, the time that playback stood still, in seconds; a stall
            that the end of the recording cut off counts up to there.
        stall_count: Stalls longer than the threshold of perception, `NOTICEABLE_STALL` or as asked.
        effective_tokens: Sum of the effective weights (7.1.3).
        weighted_tokens: Sum of the weights of Eq. 1.
        tbt_seconds: Time between tokens, seconds, shape (delivered - 1,). Tokens delivered together
            are 0 apart: gaps are per token, not divided among a chunk. Reasoning counts.
    """

    rate: float
    arrival: float
    end: float
    delivered: int
    output_tokens: int
    ttft: float
    ttfvt: float
    stall_seconds: float
    stall_count: int
    effective_tokens: float
    weighted_tokens: float
    tbt_seconds: FloatArray = field(repr=False, compare=False)

    @property
    def served(self) -> bool:
        """Whether a first token came."""
        return self.delivered > 0

    @property
    def finished(self) -> bool:
        """Whether the whole output came."""
        return self.delivered == self.output_tokens

    @property
    def stalled(self) -> bool:
        """Whether playback stalled at least once for longer than the threshold."""
        return self.stall_count > 0

    @property
    def tbt(self) -> Summary:
        """The time between tokens, summarised, in seconds."""
        return Summary.of(self.tbt_seconds)


def evaluate_stream(
    token_times: ArrayLike,
    *,
    rate: float,
    arrival: float,
    output_tokens: int | None = None,
    reasoning_tokens: int = 0,
    until: float | None = None,
    tau: float | None = None,
    alpha: float | None = None,
    tau1: float = TAU1,
    tau2: float = TAU2,
    stall_threshold: float = NOTICEABLE_STALL,
) -> StreamQoS:
    """Judge one recorded stream.

    Args:
        token_times: Delivery time of each token in seconds, never decreasing, shape (n,). Tokens
            delivered together have equal times.
        rate: Reading speed in tokens/s.
        arrival: When the request arrived, in seconds, at most the first token's time.
        output_tokens: Total output length >= n. Default: n.
        reasoning_tokens: Leading tokens, at most the output length, that the reader does not see.
            The others are the length L that scales the effective weight.
        until: End of the recording, in seconds. Needed exactly when L > n, for then the reader goes
            on waiting after the last token; for a finished stream it changes nothing.
        tau: Threshold of Eq. 1 in tokens. Default `tau1 * L` ("related to the total output length
            of the request", section 3.2).
        alpha: Slope of Eq. 1 per token. Default `1 / ((tau2 - tau1) * L)`; with both defaults the
            weighted tokens equal the effective tokens.
        tau1: Lower end of the decay band of 7.1.3, as a fraction of L.
        tau2: Upper end of that band, as a fraction of L.
        stall_threshold: Seconds above which a stall is counted; stalled time is summed whole.

    Returns:
        The stream's figures.

    Raises:
        ValueError: An argument outside these limits; the message names it.
    """
    times = delivery_times(token_times)
    arrival = float(finite("arrival", arrival))
    count = int(times.size)
    if count and times[0] < arrival:
        raise ValueError(
            f"arrival must be at most the first token's time {float(times[0])!r} s, got {arrival!r}"
        )
    length, hidden = _lengths(count, output_tokens, reasoning_tokens)
    visible = times[hidden:]
    playback = play(visible, rate)
    scale = max(length - hidden, 1)
    low, high = decay_band(tau1, tau2)
    tau = low * scale if tau is None else float(non_negative("tau", tau))
    alpha = 1.0 / ((high - low) * scale) if alpha is None else float(positive("alpha", alpha))

    end = float(times[-1]) if count else arrival
    if until is not None and not float(finite("until", until)) >= end:
        raise ValueError(f"until must be at least {end!r} s, the last event, got {until!r}")
    cut_off = 0.0
    if count < length:
        end = _recorded_until(until, count, length)
        if visible.size:
            cut_off = max(end - (float(playback.consumed[-1]) + 1.0 / rate), 0.0)
    met = playback.buffer_met
    threshold = float(non_negative("stall_threshold", stall_threshold))
    stalls = np.count_nonzero(noticed(np.append(playback.stalls, cut_off), threshold))
    return StreamQoS(
        rate=float(rate),
        arrival=arrival,
        end=end,
        delivered=count,
        output_tokens=length,
        ttft=(float(times[0]) if count else end) - arrival,
        ttfvt=(float(visible[0]) if visible.size else end) - arrival,
        stall_seconds=float(playback.stalls.sum()) + cut_off,
        stall_count=int(stalls),
        effective_tokens=float(effective_weight(met, scale, low, high).sum()),
        weighted_tokens=float(token_weight(met, tau, alpha).sum()),
        tbt_seconds=np.diff(times),
    )


def _lengths(count: int, output_tokens: int | None, reasoning_tokens: int) -> tuple[int, int]:
    """Length of an output of which `count` tokens came, and how many of it are not seen."""
    least = max(count, 1)
    length = whole(
        "output_tokens", least if output_tokens is None else output_tokens, minimum=least
    )
    hidden = whole("reasoning_tokens", reasoning_tokens, minimum=0)
    if hidden > length:
        raise ValueError(f"reasoning_tokens must be at most {length}, the length, got {hidden}")
    return length, hidden


def _recorded_until(until: float | None, count: int, length: int) -> float:
    if until is None:
        raise ValueError(
            "until must be the time when the recording ended (seconds), got None, with"
            f" {count} of {length} tokens delivered"
        )
    return float(until)
