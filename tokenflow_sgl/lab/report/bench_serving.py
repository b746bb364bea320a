"""The same run in the terms of `sglang.bench_serving`, by its formulas and under its names.

Source: `calculate_metrics` in SGLang 0.5.23's `sglang/benchmark/serving.py`, with the requests
as its backend `sglang` (`/generate`) sees them. What differs from our own figures: times count from
*sending*, only completed requests count, a chunk's gap is divided evenly among its tokens, and TPOT
runs to the end of the stream instead of its last token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenflow_sgl.lab.runs.recording import FloatArray, Recording


@dataclass(frozen=True, slots=True)
class BenchServing:
    """Fields of a result line of bench_serving, milliseconds and tokens/s.

    NaN where nothing was measured (bench_serving prints 0 there). `duration` is the time from the
    first counted request's sending to the last one's end, seconds.
    """

    duration: float
    completed: int
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    input_throughput: float
    output_throughput: float
    total_throughput: float
    mean_e2e_latency_ms: float
    median_e2e_latency_ms: float
    std_e2e_latency_ms: float
    p90_e2e_latency_ms: float
    p95_e2e_latency_ms: float
    p99_e2e_latency_ms: float
    mean_ttft_ms: float
    median_ttft_ms: float
    std_ttft_ms: float
    p90_ttft_ms: float
    p95_ttft_ms: float
    p99_ttft_ms: float
    mean_tpot_ms: float
    median_tpot_ms: float
    std_tpot_ms: float
    p90_tpot_ms: float
    p95_tpot_ms: float
    p99_tpot_ms: float
    mean_itl_ms: float
    median_itl_ms: float
    std_itl_ms: float
    p90_itl_ms: float
    p95_itl_ms: float
    p99_itl_ms: float
    max_itl_ms: float
    concurrency: float
    max_output_tokens_per_s: float
    max_concurrent_requests: int


def bench_serving(recording: Recording, completed: NDArray[np.bool_]) -> BenchServing:
    """Return the figures of bench_serving.

    Args:
        recording: The requests that count.
        completed: Which of them are successes, shape (n,).
    """
    sent, ended, counts = recording.sent, recording.ended, recording.counts
    ok = completed & ~np.isnan(sent) & ~np.isnan(ended)
    latency, ttft = (ended - sent)[ok], (recording.first - sent)[ok]
    many = counts[ok] > 1
    tpot = (latency - ttft)[many] / (counts[ok][many] - 1)
    chunks = [_divided_gaps(recording.tokens(row)) for row in np.flatnonzero(ok)]
    itl = np.concatenate(chunks) if chunks else np.empty(0)
    was_sent = ~np.isnan(sent)
    ends = np.where(np.isnan(ended), recording.info.duration_s, ended)[was_sent]
    duration = float(ends.max() - sent[was_sent].min()) if was_sent.any() else math.nan
    tokens_in, tokens_out = int(recording.prompt_tokens[ok].sum()), int(counts[ok].sum())
    peak_tokens, peak_requests = _peaks(sent[ok], latency, ttft, chunks)
    return BenchServing(
        duration=duration,
        completed=int(ok.sum()),
        total_input_tokens=tokens_in,
        total_output_tokens=tokens_out,
        request_throughput=_per(float(ok.sum()), duration),
        input_throughput=_per(tokens_in, duration),
        output_throughput=_per(tokens_out, duration),
        total_throughput=_per(tokens_in + tokens_out, duration),
        **_spread("e2e_latency", latency),
        **_spread("ttft", ttft),
        **_spread("tpot", tpot),
        **_spread("itl", itl),
        max_itl_ms=float(itl.max()) * 1000 if itl.size else math.nan,
        concurrency=_per(float(latency.sum()), duration),
        max_output_tokens_per_s=peak_tokens,
        max_concurrent_requests=peak_requests,
    )


def _divided_gaps(times: FloatArray) -> FloatArray:
    """Gaps between chunks, each divided among the tokens of the later chunk.

    Tokens that came in the first chunk after its first token have no gap.
    """
    arrivals, sizes = np.unique(times, return_counts=True)
    return np.repeat(np.diff(arrivals) / sizes[1:], sizes[1:])


def _peaks(
    sent: FloatArray, latency: FloatArray, ttft: FloatArray, chunks: list[FloatArray]
) -> tuple[float, int]:
    """Most tokens, and most requests under way, in a second counted from the first sending."""
    if not sent.size:
        return 0.0, 0
    start = float(sent.min())
    seconds = math.ceil(float((sent + latency).max()) - start) + 1
    tokens = np.zeros(seconds)
    under_way = np.zeros(seconds + 1)
    for begin, length, wait, gaps in zip(sent - start, latency, ttft, chunks, strict=True):
        times = begin + wait + np.concatenate(([0.0], np.cumsum(gaps)))
        seen = times.astype(np.int64)
        tokens += np.bincount(seen[seen < seconds], minlength=seconds)
        under_way[int(begin)] += 1
        under_way[min(int(begin + length) + 1, seconds)] -= 1
    return float(tokens.max()), int(np.cumsum(under_way)[:seconds].max())


def _spread(name: str, values: FloatArray) -> dict[str, float]:
    """Mean to P99 under bench_serving's names, milliseconds."""
    if not values.size:
        keys = ("mean", "median", "std", "p90", "p95", "p99")
        return {f"{key}_{name}_ms": math.nan for key in keys}
    p90, p95, p99 = (float(point) for point in np.percentile(values, (90, 95, 99)))
    return {
        f"mean_{name}_ms": float(values.mean()) * 1000,
        f"median_{name}_ms": float(np.median(values)) * 1000,
        f"std_{name}_ms": float(values.std()) * 1000,
        f"p90_{name}_ms": p90 * 1000,
        f"p95_{name}_ms": p95 * 1000,
        f"p99_{name}_ms": p99 * 1000,
    }


def _per(amount: float, duration: float) -> float:
    return amount / duration if duration > 0 else math.nan
