"""A trace several times in a row: for rates above its own, over the same time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tokenflow_sgl.lab.traces.request import Accounting, Trace, TraceError, TraceRequest


def period_s(trace: Trace) -> float:
    """Seconds after which a trace can begin anew at its own rate; 0: it arrives all at once.

    From the first to the last arrival of sessions and single requests, and a mean gap more.
    """
    arrivals = [
        request.arrival_s
        for request in trace.requests
        if request.session is None or request.turn == 0
    ]
    span = max(arrivals) - min(arrivals)
    return span * len(arrivals) / (len(arrivals) - 1) if span > 0.0 else 0.0


def repeat(trace: Trace, times: int) -> Trace:
    """The trace `times` times, each beginning a period after the one before.

    Sessions and shared prefixes of each are its own: later ones find nothing cached.

    Raises:
        TraceError: `times` is below 1, or the trace arrives all at once.
    """
    if times < 1:
        raise TraceError(f"times is {times!r}; allowed is a whole number of at least 1")
    period = period_s(trace)
    if not period > 0.0:
        raise TraceError(f"{trace.name} arrives all at once, so it cannot be repeated in time")
    if times == 1:
        return trace
    ids = [block.id for request in trace.requests for block in request.prefix]
    width = max(ids, default=0) - min(ids, default=0) + 1
    rows = [
        _shifted(request, number, number * period, number * width)
        for number in range(times)
        for request in trace.requests
    ]
    # Later turns of sessions may arrive after the next one has begun.
    order = sorted(range(len(rows)), key=lambda place: rows[place].arrival_s)
    place = {old: new for new, old in enumerate(order)}
    count = len(trace.requests)
    updates = [
        replace(
            update,
            time_s=update.time_s + number * period,
            index=place[number * count + update.index],
        )
        for number in range(times)
        for update in trace.priority_updates
    ]
    accounting = trace.accounting
    dropped = Counter({why: times * each for why, each in accounting.dropped.items()})
    return replace(
        trace,
        requests=tuple(rows[old] for old in order),
        accounting=Accounting(times * accounting.rows, len(rows), dict(dropped)),
        notes=(*trace.notes, f"{times} times in a row, every {period:g} s."),
        priority_updates=tuple(sorted(updates, key=lambda update: update.time_s)),
    )


def _shifted(request: TraceRequest, number: int, by_s: float, ids: int) -> TraceRequest:
    return replace(
        request,
        arrival_s=request.arrival_s + by_s,
        session=None if request.session is None else f"{request.session}/{number}",
        prefix=tuple(replace(block, id=block.id + ids) for block in request.prefix),
    )
