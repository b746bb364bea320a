"""Transforms of traces: select a part, speed up, set readers, objectives or priorities.

Each function returns a new trace. What it leaves out is added to the accounting's `dropped` with a
reason, and a note says what was done. Sessions stay whole: the functions that choose requests take
or leave a session as one; only `fit_context` cuts, from the first turn that does not fit on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tokenflow_sgl.lab.traces.generators.arrivals import PoissonArrivals
from tokenflow_sgl.lab.traces.generators.priority_changes import PRIORITIES, Priorities
from tokenflow_sgl.lab.traces.generators.reading_rates import RateMix
from tokenflow_sgl.lab.traces.parameters import spell, stream
from tokenflow_sgl.lab.traces.request import (
    Accounting,
    PriorityUpdate,
    Trace,
    TraceError,
    TraceRequest,
)


def window(trace: Trace, start_s: float, duration_s: float) -> Trace:
    """Keep requests that arrive from `start_s` on and before `start_s + duration_s`.

    The new zero is `start_s`. A session is kept, with all its turns, if its first turn arrives
    then. Changes of priority before the start are moved to it.

    Raises:
        TraceError: A time is out of range, or nothing arrives in the window.
    """
    _positive("duration", duration_s)
    if not 0 <= start_s < math.inf:
        raise TraceError(f"start is {start_s!r}; allowed is a number of seconds of at least 0")
    reason = f"arrival outside {start_s:g} to {start_s + duration_s:g} s"
    firsts: dict[Hashable, bool] = {}
    inside = [
        firsts.setdefault(unit, start_s <= request.arrival_s < start_s + duration_s)
        for unit, request in zip(_units(trace), trace.requests, strict=True)
    ]
    note = f"Window of {duration_s:g} s from {start_s:g} s on."
    kept = _keep(trace, inside, reason, note)
    return replace(
        kept,
        requests=tuple(replace(r, arrival_s=r.arrival_s - start_s) for r in kept.requests),
        priority_updates=tuple(
            replace(u, time_s=max(u.time_s - start_s, 0.0)) for u in kept.priority_updates
        ),
    )


def speed_up(trace: Trace, factor: float) -> Trace:
    """Let requests arrive `factor` times as fast (below 1: slower).

    Think times stay as they are: readers do not think faster because there are more of them.

    Raises:
        TraceError: `factor` is not above 0.
    """
    _positive("speed", factor)
    return replace(
        trace,
        requests=tuple(replace(r, arrival_s=r.arrival_s / factor) for r in trace.requests),
        priority_updates=tuple(
            replace(u, time_s=u.time_s / factor) for u in trace.priority_updates
        ),
        notes=(*trace.notes, f"Arrivals {factor:g} times as fast; think times unchanged."),
    )


def poisson_arrivals(trace: Trace, rate: float, seed: int) -> Trace:
    """Let sessions and single requests arrive as a Poisson process, in the order of the trace.

    Later turns keep their distance from the first one, and changes of priority from their request's
    arrival. With one seed another rate stretches the same arrivals.

    Args:
        trace: The trace.
        rate: Arrivals per second on average.
        seed: Of the gaps between them.

    Raises:
        TraceError: The rate is out of range.
    """
    units = _units(trace)
    firsts: dict[Hashable, float] = {}
    for unit, request in zip(units, trace.requests, strict=True):
        firsts.setdefault(unit, request.arrival_s)
    drawn = PoissonArrivals(rate).times(stream(seed, "poisson"), requests=len(firsts)).tolist()
    later = {unit: new - old for (unit, old), new in zip(firsts.items(), drawn, strict=True)}
    moved = [
        replace(request, arrival_s=request.arrival_s + later[unit])
        for unit, request in zip(units, trace.requests, strict=True)
    ]
    order = sorted(range(len(moved)), key=lambda index: moved[index].arrival_s)
    place = {old: new for new, old in enumerate(order)}
    updates = [
        PriorityUpdate(each.time_s + later[units[each.index]], place[each.index], each.priority)
        for each in trace.priority_updates
    ]
    return replace(
        trace,
        requests=tuple(moved[index] for index in order),
        priority_updates=tuple(sorted(updates, key=lambda each: each.time_s)),
        notes=(*trace.notes, f"Poisson arrivals at {rate:g} requests/s, seed {seed}."),
    )


def sample(trace: Trace, share: float, seed: int) -> Trace:
    """Keep each session, and each request without one, with probability `share`.

    Raises:
        TraceError: `share` is not in (0, 1], or nothing is left.
    """
    if not 0 < share <= 1:
        raise TraceError(f"share is {share!r}; allowed is a number above 0 and at most 1")
    units = _units(trace)
    distinct = dict.fromkeys(units)
    drawn = stream(seed, "sample").random(len(distinct)) < share
    chosen = dict(zip(distinct, drawn.tolist(), strict=True))
    reason = f"not in the sample of {share:g}"
    note = f"Sample of {share:g} of sessions and single requests, seed {seed}."
    return _keep(trace, [chosen[unit] for unit in units], reason, note)


def limit(trace: Trace, requests: int) -> Trace:
    """Keep the first sessions and single requests, at most `requests` requests in all.

    They are taken in the order of their first arrival, up to the first that does not fit whole.

    Raises:
        TraceError: `requests` is below 1, or the first session is longer.
    """
    if requests < 1:
        raise TraceError(f"limit is {requests!r}; allowed is a whole number of at least 1")
    units = _units(trace)
    room, chosen = requests, set()
    for unit, size in Counter(units).items():
        if size > room:
            break
        room -= size
        chosen.add(unit)
    note = f"The first {requests} requests, sessions whole."
    return _keep(trace, [u in chosen for u in units], f"after the first {requests} requests", note)


def fit_context(trace: Trace, max_tokens: int) -> Trace:
    """Leave out requests whose prompt and answer together are longer than `max_tokens`.

    In a session the later turns are left out too, because they build on it.

    Raises:
        TraceError: `max_tokens` is below 2, or nothing is left.
    """
    if max_tokens < 2:
        raise TraceError(f"max_context is {max_tokens!r}; allowed is a whole number of at least 2")
    reason = f"over {max_tokens} tokens of context"
    ended: set[str] = set()
    reasons: list[str | None] = []
    for request in trace.requests:
        over = request.prompt_tokens + request.output_tokens > max_tokens
        if request.session in ended:
            reasons.append(f"after a turn {reason}")
            continue
        if over and request.session is not None:
            ended.add(request.session)
        reasons.append(reason if over else None)
    return _drop(trace, reasons, f"Contexts of at most {max_tokens} tokens.")


def with_classes(trace: Trace, rates: Mapping[str, float]) -> Trace:
    """Give the readers of requests that name a class its rate.

    Args:
        trace: With such requests or without.
        rates: Tokens/s by class.

    Raises:
        TraceError: A request names a class that there is not.
    """
    for index, request in enumerate(trace.requests):
        if request.qos_class is not None and request.qos_class not in rates:
            raise TraceError(
                f"request {index} of {trace.name} is of the class {request.qos_class!r}; known "
                f"classes are {', '.join(sorted(rates))}"
            )
    return replace(
        trace,
        requests=tuple(
            r if r.qos_class is None else replace(r, rate=rates[r.qos_class])
            for r in trace.requests
        ),
    )


def with_rates(trace: Trace, mix: RateMix, seed: int) -> Trace:
    """Give every reader a rate, and no class; a session has one reader."""
    units = _units(trace)
    distinct = dict.fromkeys(units)
    drawn = mix.sample(stream(seed, "rates"), len(distinct)).tolist()
    rates = dict(zip(distinct, drawn, strict=True))
    seeded = "" if len(mix.rates) == 1 else f", seed {seed}"
    return replace(
        trace,
        requests=tuple(
            replace(r, rate=rates[unit], qos_class=None)
            for r, unit in zip(trace.requests, units, strict=True)
        ),
        notes=(*trace.notes, f"Readers of {mix} tokens/s{seeded}."),
    )


def with_slos(trace: Trace, ttft_s: float | None, tbt_s: float | None) -> Trace:
    """Give every request objectives for the time to first token and between tokens, seconds.

    Args:
        trace: The trace.
        ttft_s: Time to first token; None: as it is.
        tbt_s: Time between tokens; None: as it is.

    Raises:
        TraceError: An objective is not above 0.
    """
    changes: dict[str, float] = {}
    notes = list(trace.notes)
    for name, key, value in (("TTFT", "ttft_slo_s", ttft_s), ("TBT", "tbt_slo_s", tbt_s)):
        if value is not None:
            _positive(f"{name} SLO", value)
            changes[key] = value
            notes.append(f"{name} objective {value:g} s.")
    return replace(
        trace, requests=tuple(_changed(r, changes) for r in trace.requests), notes=tuple(notes)
    )


def with_priorities(trace: Trace, priorities: Priorities, seed: int) -> Trace:
    """Give every request a priority at its arrival, and changes of it afterwards.

    Raises:
        TraceError: There would be too many changes.
    """
    arrivals = np.array([request.arrival_s for request in trace.requests])
    first, updates = priorities.draw(stream(seed, "priorities"), arrivals)
    return replace(
        trace,
        requests=tuple(
            replace(r, priority=value)
            for r, value in zip(trace.requests, first.tolist(), strict=True)
        ),
        priority_updates=updates,
        notes=(*trace.notes, f"Priorities by {spell(PRIORITIES, priorities)}, seed {seed}."),
    )


def _units(trace: Trace) -> list[Hashable]:
    """What stays together: the session's name, or the request's own position."""
    return [
        index if request.session is None else request.session
        for index, request in enumerate(trace.requests)
    ]


def _keep(trace: Trace, kept: Iterable[bool], reason: str, note: str) -> Trace:
    return _drop(trace, [None if keep else reason for keep in kept], note)


def _drop(trace: Trace, reasons: Sequence[str | None], note: str) -> Trace:
    """The trace without the requests that have a reason to go."""
    dropped = Counter(trace.accounting.dropped)
    dropped.update(reason for reason in reasons if reason is not None)
    kept = [index for index, reason in enumerate(reasons) if reason is None]
    if not kept:
        shown = ", ".join(dict.fromkeys(filter(None, reasons)))
        raise TraceError(f"no request of {trace.name} is left: all have {shown}")
    place = {old: new for new, old in enumerate(kept)}
    return Trace(
        name=trace.name,
        requests=tuple(trace.requests[index] for index in kept),
        accounting=Accounting(trace.accounting.rows, len(kept), dict(dropped)),
        notes=(*trace.notes, note),
        priority_updates=tuple(
            PriorityUpdate(update.time_s, place[update.index], update.priority)
            for update in trace.priority_updates
            if update.index in place
        ),
    )


def _changed(request: TraceRequest, changes: dict[str, float]) -> TraceRequest:
    return replace(request, **changes)  # type: ignore[arg-type]


def _positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise TraceError(f"{name} is {value!r}; allowed is a number above 0")
