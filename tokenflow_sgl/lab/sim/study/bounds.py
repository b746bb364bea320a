"""What no scheduler can beat on a trace and a device: how much is left to win.

The bounds forget nearly everything that makes scheduling hard (memory beyond its size, chunks,
links, what waits for what), so that every schedule of the simulator keeps them.

**Decode.** A step of b rows that read S <= M tokens takes at least A + B b + C S, for any
A, B, C >= 0 that lie below the device's table. Of A, a token at context c causes at least c / M:
no step reads more than M. So a token costs A c / M + B + C c or more, also in a mixed step, and
where it comes out of a prefill. A, B, C are chosen by a linear program such that the whole trace
costs as much as possible. What prompts share is in memory once: of c it counts for C only.

**Prefill.** A prompt token costs at least the smallest share P(n) / n of any step; tokens that
another prompt has, too, cost nothing.

**Makespan.** The work of all that come from some moment on cannot end before that moment plus that
work; nor can a stream end sooner than it would alone.

**Effective throughput** (TokenFlow 7.1.3). A token is worth nothing once 20 % of the answer lie
unread, and full value only up to 10 %, by what is unread when it comes. So by T a reader of rate r
that got its first token no sooner than s is served at most min(n, r (T - s) + 0.15 n + 1) weighted
tokens. The bound is the best T that the makespan allows.

**TTFT.** First tokens need their prompts computed. Serving the shortest remaining prompt first
minimises the mean of one machine (Schrage 1968). For a percentile, k requests may be given up: of
those that come within a window, all but the k longest prompts have to be computed, and the last
one of these came no later than the window's end.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from tokenflow_sgl.lab.profiles import DecodeTable, DeviceProfile
from tokenflow_sgl.lab.sim.engine_options import EngineOptions, SimulationError
from tokenflow_sgl.lab.sim.simulated_streams import FloatArray
from tokenflow_sgl.lab.sim.study.asked import Asked
from tokenflow_sgl.lab.traces import Trace

WORTH = 0.15
"""Weighted tokens in a full buffer, as a share of the answer: 10 % whole, 10 % falling to 0."""
HORIZON, POINTS = 4.0, 400
"""The effective throughput is looked at up to so many makespans, at so many points."""
WINDOWS = 200
"""Starts of windows that a percentile's bound tries."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a trace on a device; open sessions.

    makespan_s: At least. token_throughput, effective_throughput: At most, tokens per second.
    mean_ttft_s, p99_ttft_s: At least.
    """

    makespan_s: float
    token_throughput: float
    effective_throughput: float
    mean_ttft_s: float
    p99_ttft_s: float


def refuse_speculation(options: EngineOptions) -> None:
    """Raise a SimulationError with speculation: a step gives a stream several tokens there."""
    if options.speculates:
        raise SimulationError(
            f"speculative_num_draft_tokens is {options.speculative_num_draft_tokens}; allowed for "
            "bounds is 1, because they count a token per step of a stream"
        )


def bounds(trace: Trace, profile: DeviceProfile, options: EngineOptions) -> Bounds:
    """The bounds of a trace whose requests come at their `arrival_s`.

    Raises:
        SimulationError: The engine speculates.
    """
    refuse_speculation(options)
    asked = Asked.of(trace)
    arrival, output, rate = asked.arrival, asked.output, asked.rate
    prefill: FloatArray = cheapest_prefill(profile, options) * asked.own.astype(np.float64)
    decode = decode_costs(profile.decode, options.max_total_tokens, asked)
    first = arrival + prefill
    fastest = profile.decode_seconds(1, 1)
    alone = float((first + (output - 1) * fastest).max())
    makespan = max(_work_bound(arrival, prefill), _work_bound(arrival, decode), alone)
    ends = makespan * np.linspace(1.0, HORIZON, POINTS)
    read = np.maximum(ends[:, None] - first, 0.0) * rate + WORTH * output + 1.0
    # Between two points the numerator grows, the denominator does not shrink.
    weighted = np.minimum(read, output).sum(axis=1)
    effective = float((np.append(weighted[1:], weighted[-1]) / ends).max())
    tokens = float(output.sum())
    return Bounds(
        makespan_s=makespan,
        token_throughput=tokens / makespan,
        effective_throughput=min(effective, tokens / makespan),
        mean_ttft_s=shortest_first(arrival, prefill),
        p99_ttft_s=_percentile_bound(arrival, prefill, 0.99),
    )


def cheapest_prefill(profile: DeviceProfile, options: EngineOptions) -> float:
    """Seconds per prompt token in the cheapest step."""
    table = profile.prefill
    sizes = [size for size in table.tokens if size < options.chunked_prefill_size]
    sizes += [float(options.chunked_prefill_size), 1.0]
    return min(table.at(size, table.attended[0]) / size for size in sizes)


def cheapest_decode(
    table: DecodeTable, memory: int, tokens: float, context: float, own: float
) -> tuple[float, float, float]:
    """A, B, C below the table that make `tokens` tokens cost the most.

    They read `context` tokens in all; `own` of these none is shared.
    """
    batches = [*table.batch, 2.0 * table.batch[-1]]
    contexts = [*table.context, 2.0 * table.context[-1]]
    rows, seconds = [], []
    for i, batch in enumerate(batches):
        for j, length in enumerate(contexts):
            # In a cell the table is bilinear, and so is the plane: its corners are enough. Cells
            # that lie beyond the memory as a whole do not matter.
            if batches[max(i - 1, 0)] * contexts[max(j - 1, 0)] <= memory:
                rows.append([1.0, batch, batch * length])
                seconds.append(table.at(batch, length))
    gain = [own / memory, tokens, context]
    # Scaled, so that the solver's tolerance does not matter.
    scale = np.array([1.0, batches[-1], batches[-1] * contexts[-1]])
    found = linprog(
        -np.array(gain) / scale, A_ub=np.array(rows) / scale, b_ub=np.array(seconds), method="highs"
    )
    solution = found.x / scale
    # What rounding may have pushed above the table is taken off again.
    excess = max(float((np.array(rows) @ solution / np.array(seconds)).max()), 1.0)
    constant, per_row, per_token = (solution / excess).tolist()
    return constant, per_row, per_token


def decode_plane(table: DecodeTable, memory: int, asked: Asked) -> tuple[float, float, float]:
    """A / M, B, C for a trace's answers: seconds per unshared token read, token, token read."""
    tokens = asked.tokens
    read, unshared = asked.context(tokens), asked.context(tokens, own=True)
    constant, per_row, per_token = cheapest_decode(
        table, memory, max(float(tokens.sum()), 1.0), float(read.sum()), float(unshared.sum())
    )
    return constant / memory, per_row, per_token


def decode_costs(table: DecodeTable, memory: int, asked: Asked) -> FloatArray:
    """Seconds that each answer costs at least."""
    per_unshared, per_row, per_token = decode_plane(table, memory, asked)
    tokens = asked.tokens
    read, unshared = asked.context(tokens), asked.context(tokens, own=True)
    return np.asarray(per_unshared * unshared + per_token * read + per_row * tokens)


def _work_bound(arrival: FloatArray, work: FloatArray) -> float:
    """When the work can be done at the earliest; sorted by arrival."""
    left = np.cumsum(work[::-1])[::-1]
    return float((arrival + left).max())


def shortest_first(arrival: FloatArray, work: FloatArray) -> float:
    """Mean time from arrival to completion under shortest remaining work first, preemptive."""
    now, done, total, place = 0.0, 0, 0.0, 0
    queue: list[tuple[float, float]] = []
    while done < len(arrival):
        if not queue:
            now = max(now, float(arrival[place]))
        while place < len(arrival) and arrival[place] <= now:
            heapq.heappush(queue, (float(work[place]), float(arrival[place])))
            place += 1
        left, came = heapq.heappop(queue)
        until = float(arrival[place]) if place < len(arrival) else math.inf
        if now + left <= until:
            now += left
            total += now - came
            done += 1
        else:
            heapq.heappush(queue, (left - (until - now), came))
            now = until
    return total / len(arrival)


def _percentile_bound(arrival: FloatArray, work: FloatArray, share: float) -> float:
    """Below this no percentile of the time from arrival to completion can be."""
    count = len(arrival)
    given_up = count - 1 - math.floor((count - 1) * share)
    best = float(np.percentile(work, 100.0 * share))  # none is faster than alone
    for start in np.unique(np.linspace(0, count - 1, min(WINDOWS, count)).astype(int)).tolist():
        longest: list[float] = []  # of the window so far, a heap of those that may be given up
        saved = total = 0.0
        for place in range(start, count):
            total += work[place]
            heapq.heappush(longest, float(work[place]))
            saved += work[place]
            if len(longest) > given_up:
                saved -= heapq.heappop(longest)
            best = max(best, float(arrival[start] + total - saved - arrival[place]))
    return best
