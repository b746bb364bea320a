"""What a whole run was worth: judged streams in, QoS (Eq. 2), throughputs and tails out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.qos.checks import non_negative
from tokenflow_sgl.qos.stream_qos import StreamQoS
from tokenflow_sgl.qos.summary import Summary


@dataclass(frozen=True, slots=True)
class RunQoS:
    """How the readers of one run fared, together.

    Attributes:
        duration: T, the makespan: from the first arrival to the last stream's end, seconds.
        qos: Eq. 2, weighted tokens per second after penalties.
        effective_throughput: Effective tokens (7.1.3) per second of T.
        token_throughput: Delivered tokens per second of T.
        ttft: Time to first token over all streams, seconds; never-served ones with the time waited.
        tbt: Time between tokens, pooled over all streams, seconds.
        stall_seconds: Stalled time, summed over the streams, seconds.
        stall_count: Stalls longer than the threshold, summed over the streams.
        stalled_share: Share of the streams with at least one such stall, 0 to 1.
        streams: Number of streams.
        unserved: How many of them never got a token.
        unfinished: How many did not get their whole output, the unserved ones included.
        delivered_tokens: Tokens delivered.
        effective_tokens: Sum of the effective weights.
        weighted_tokens: Sum of the weights of Eq. 1.
        ttft_penalty: The lambda that was applied, tokens per second of TTFT.
        stall_penalty: The mu that was applied, tokens per second of stall.
    """

    duration: float
    qos: float
    effective_throughput: float
    token_throughput: float
    ttft: Summary
    tbt: Summary
    stall_seconds: float
    stall_count: int
    stalled_share: float
    streams: int
    unserved: int
    unfinished: int
    delivered_tokens: int
    effective_tokens: float
    weighted_tokens: float
    ttft_penalty: float
    stall_penalty: float


def evaluate_run(
    streams: Sequence[StreamQoS], *, ttft_penalty: float, stall_penalty: float
) -> RunQoS:
    """Judge a run by Eq. 2 of TokenFlow and its companions.

    QoS = (1/T) sum_i (sum_j w_ij - lambda TTFT_i - mu Rebuffer_i). The paper calls T "the overall
    request process time"; here it is the makespan, from the first arrival to the last end.

    Args:
        streams: The judged streams of one run, on one clock, at least one.
        ttft_penalty: lambda, tokens lost per second of TTFT, >= 0. The paper gives no value.
        stall_penalty: mu, tokens lost per second of stall, >= 0. The paper gives no value.

    Returns:
        The run's figures.

    Raises:
        ValueError: No streams, a penalty that is negative or not finite, or a run without duration.
    """
    lam = float(non_negative("ttft_penalty", ttft_penalty))
    mu = float(non_negative("stall_penalty", stall_penalty))
    if not streams:
        raise ValueError("streams must hold at least one stream, got none")
    duration = max(stream.end for stream in streams) - min(stream.arrival for stream in streams)
    if not duration > 0:
        raise ValueError(
            f"streams must span a duration > 0 s from first arrival to last end, got {duration!r}"
        )
    ttft = np.array([stream.ttft for stream in streams])
    stall_seconds = sum(stream.stall_seconds for stream in streams)
    weighted = sum(stream.weighted_tokens for stream in streams)
    effective = sum(stream.effective_tokens for stream in streams)
    delivered = sum(stream.delivered for stream in streams)
    return RunQoS(
        duration=duration,
        qos=(weighted - lam * float(ttft.sum()) - mu * stall_seconds) / duration,
        effective_throughput=effective / duration,
        token_throughput=delivered / duration,
        ttft=Summary.of(ttft),
        tbt=Summary.of(np.concatenate([stream.tbt_seconds for stream in streams])),
        stall_seconds=stall_seconds,
        stall_count=sum(stream.stall_count for stream in streams),
        stalled_share=sum(stream.stalled for stream in streams) / len(streams),
        streams=len(streams),
        unserved=sum(not stream.served for stream in streams),
        unfinished=sum(not stream.finished for stream in streams),
        delivered_tokens=delivered,
        effective_tokens=effective,
        weighted_tokens=weighted,
        ttft_penalty=lam,
        stall_penalty=mu,
    )
