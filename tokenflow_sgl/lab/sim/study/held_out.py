"""Whether parameters that a search found are better where it did not look.

The best of many runs on one trace is partly luck: it fits that trace's very lengths and moments.
So what is found is compared with what is shipped on traces that the search has not seen, and
recommended only if it is better by a margin on each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenflow_sgl.lab.sim.study.spread import Spread
from tokenflow_sgl.lab.sim.study.sweep import Row, Setup, row_of
from tokenflow_sgl.lab.sim.study.tuning import KEEPS, KEPT, OBJECTIVES, Tuned, allowed
from tokenflow_sgl.lab.traces import Trace, TraceError, transform

MARGIN = 0.03
"""By how much the objective must be better on every trace that was held out, as a share."""
SEEDS = 2
"""Other draws of a generated workload that are held out."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One trace that was not searched, under both settings.

    name: Of the trace. shipped: The run with the parameters as shipped. tuned: With those found.
    """

    name: str
    shipped: Row
    tuned: Row


def halves(trace: Trace) -> tuple[Trace, Trace]:
    """A recorded trace, cut in time so that about as many requests arrive before as after.

    Raises:
        TraceError: All requests, or first turns, arrive at once.
    """
    arrivals = sorted(
        request.arrival_s
        for index, request in enumerate(trace.requests)
        if request.session is None or request.turn == 0
    )
    middle, end = arrivals[len(arrivals) // 2], arrivals[-1]
    if not middle > arrivals[0]:
        raise TraceError(
            f"{trace.name} arrives all at once, so no part of it can be held out; name another "
            "trace with --check"
        )
    # A second more than to the last arrival, for a window's end is not in it.
    after = end - middle + 1.0
    return transform.window(trace, 0.0, middle), transform.window(trace, middle, after)


def hold_out(
    setups: Sequence[Setup],
    found: Tuned,
    spread: Spread,
    done: Callable[[], None] | None = None,
) -> list[HeldOut]:
    """Run what is shipped and what was found on traces that were not searched.

    Args:
        setups: The traces, with device and SGLang's settings.
        found: By the search; with a setting.
        spread: Where the runs are done.
        done: Called as each run ends.
    """
    held = []
    for setup in setups:
        rows = []
        for row in spread(row_of, setup, [{}, found.setting]):
            rows.append(row)
            if done is not None:
                done()
        held.append(HeldOut(setup.trace.name, *rows))
    return held


def gain(shipped: Row, tuned: Row, objective: str) -> float:
    """Share by which the objective is better with what was found; below 0: worse."""
    column, more = OBJECTIVES[objective]
    before, after = float(shipped[column]), float(tuned[column])
    if not before > 0.0:
        return 0.0  # what is nought already cannot be beaten
    return after / before - 1.0 if more else 1.0 - after / before


def objection(held: Sequence[HeldOut], objective: str) -> str | None:
    """Why what was found is not recommended: the first trace held out that speaks against it."""
    for number, each in enumerate(held, 1):
        better = gain(each.shipped, each.tuned, objective)
        where = f"held-out trace {number} of {len(held)}"
        if better < MARGIN:
            return f"{where} gains {better:.1%}, less than {MARGIN:.0%}"
        for name in KEEPS:
            if each.tuned[name] < KEPT * each.shipped[name]:
                return f"{where} loses more than {1 - KEPT:.0%} of its {name.replace('_', ' ')}"
        if not allowed(each.tuned, each.shipped):
            return f"on {where} readers wait longer on average"
    return None
