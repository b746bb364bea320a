"""What becomes known of a live stream's reader beside the tokens that are sent to it."""

from __future__ import annotations

import math

from tokenflow_sgl.lifecycle.columns import ALL
from tokenflow_sgl.lifecycle.table import R, StreamTable
from tokenflow_sgl.qos import change_rate, take_back

LEAST_REST = 1.0
"""Seconds for which a rest counts at least: each costs a switch, and a stream that rests again
before it is back would not get on."""


def counted(seconds: float) -> float:
    """What a rest of so many seconds counts for."""
    return max(seconds, LEAST_REST)


def set_rate(table: StreamTable[R], request: R, rate: float, now: float) -> bool:
    """The stream's reader reads `rate` tokens/s from now on.

    Args:
        table: With the stream.
        request: The stream.
        rate: Tokens/s; 0: its reader has looked away, and the stream rests until it has a rate.
        now: Seconds on the table's clock.

    Returns:
        False: the stream has rested for as long as it may, or as many streams of its tenant rest as
        may, and it goes on as it did.
    """
    slot = table.slot(request)
    resting = bool(table.readers.resting[slot])
    if table.tenants is not None and rate:
        most = table.tenants.granted(int(table.tenant[slot])).rate
        rate = rate if most is None else min(rate, most)
    if resting and rate != 0.0:
        table.rested[slot] += counted(now - float(table.rests_since[slot]))
    elif not resting and rate == 0.0:
        if table.rested[slot] >= table.rests.longest or not _may_rest(table, slot):
            return False
        table.rests_since[slot] = now
    change_rate(table.readers, slot, rate, now)
    table.phases.changed(slot)
    return True


def _may_rest(table: StreamTable[R], slot: int) -> bool:
    """Whether the stream's tenant may have one more that rests."""
    if table.tenants is None:
        return True
    number = int(table.tenant[slot])
    most = table.tenants.granted(number).rests
    if most is None:
        return True
    order = table.order()
    own = order[table.tenant.take(order) == number]
    return int(table.readers.resting.take(own).sum()) < most


def set_weight(table: StreamTable[R], request: R, weight: float) -> None:
    """The stream's claim relative to others is `weight` from now on; 1 is that of most classes."""
    slot = table.slot(request)
    table.weight[slot] = weight
    table.phases.changed(slot)


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
