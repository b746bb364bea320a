"""What becomes known of a live stream's reader beside the tokens that are sent to it."""

from __future__ import annotations

import math

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.lifecycle.columns import ALL
from tokenflow_sgl.lifecycle.table import R, StreamTable
from tokenflow_sgl.qos import change_rate, take_back


def set_rate(table: StreamTable[R], request: R, rate: float, now: float) -> None:
    """The stream's reader reads `rate` tokens/s from now on.

    Args:
        table: With the stream.
        request: The stream.
        rate: Tokens/s; 0: its reader has looked away, and the stream rests until it has a rate.
        now: Seconds on the table's clock.
    """
    slot = table.slot(request)
    if not (rate == 0.0 and table.readers.resting[slot]):
        table.rests_since[slot] = now
    change_rate(table.readers, slot, rate, now)
    table.phases.changed(slot)


def set_weight(table: StreamTable[R], request: R, weight: float) -> None:
    """The stream's claim relative to others is `weight` from now on; 1 is that of most classes."""
    slot = table.slot(request)
    table.weight[slot] = weight
    table.phases.changed(slot)


def end_long_rests(table: StreamTable[R], longest: float, now: float) -> None:
    """Streams that have rested for more than `longest` seconds go on at the rate that they had.

    So the engine comes to its end: a stream that never ends would hold up whatever waits for all
    requests, such as a change of the weights.
    """
    if not table.readers.resting.any():
        return
    slots = table.order()
    overdue = table.readers.resting[slots] & (now - table.rests_since[slots] > longest)
    for slot in slots[overdue].tolist():
        change_rate(table.readers, slot, float(table.readers.rate[slot]), now)
        table.phases.changed(slot)


def any_waits(table: StreamTable[R]) -> bool:
    """Whether a paused stream waits for its turn: more are served than memory holds.

    Streams whose readers have looked away do not wait.
    """
    slots = table.order()
    phase = table.phases.phase[slots]
    paused = (phase == Phase.PAUSED.value) | (phase == Phase.LOADING.value)
    return bool((paused & ~table.readers.resting[slots]).any())


def set_passed_on(table: StreamTable[R], request: R, tokens: int | None, now: float) -> None:
    """The front end holds the text of all output tokens back but for the first `tokens`.

    Args:
        table: With the stream.
        request: The stream.
        tokens: Of its output, reasoning included; None: it holds nothing back any more.
        now: Seconds on the table's clock.
    """
    slot = table.slot(request)
    table.passed_on[slot] = ALL if tokens is None else tokens
    if tokens is not None:
        read = max(tokens - int(table.reasoning[slot]), 0)
        take_back(table.readers, slot, int(table.readers.delivered[slot]) - read, now)
        if not table.readers.started[slot]:
            table.last_token[slot] = math.nan
    table.phases.changed(slot)


def pass_on_the_rest(table: StreamTable[R], request: R, now: float) -> bool:
    """The answer has come to its end, whereby all text goes out; returns whether some was held.

    Arguments as of `set_passed_on`.
    """
    held = bool(table.passed_on[table.slot(request)] != ALL)
    if held:
        set_passed_on(table, request, None, now)
    return held
