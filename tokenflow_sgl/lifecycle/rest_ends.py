"""Who rests and who waits: rests end though no reader is back, when something waits for streams."""

from __future__ import annotations

import math

import numpy as np

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.lifecycle.reader_updates import set_rate
from tokenflow_sgl.lifecycle.rest_rules import AWAITED, LIMIT
from tokenflow_sgl.lifecycle.settled import rest
from tokenflow_sgl.lifecycle.table import R, StreamTable


def any_waits(table: StreamTable[R]) -> bool:
    """Whether a paused stream waits for its turn: more are served than memory holds.

    Streams that rest do not wait.
    """
    slots = table.order()
    phase = table.phases.phase[slots]
    paused = (phase == Phase.PAUSED.value) | (phase == Phase.LOADING.value)
    return bool((paused & ~rest(table, table.readers, slots)).any())


def end_rests(table: StreamTable[R], now: float) -> None:
    """In every pass: streams that have rested for long enough go on at the rate that they had.

    What waited for streams, and has given up, lets them rest again.

    Args:
        table: Of the streams.
        now: Seconds on its clock.
    """
    if table.rests.awaited and table.rests.give_up(now, len(table)):
        _look_again(table)
    if not table.readers.resting.any():
        return
    slots = table.order()
    so_far = table.rested[slots] + (now - table.rests_since[slots])
    overdue = table.readers.resting[slots] & (so_far > table.rests.longest)
    for slot in slots[overdue].tolist():
        request = table.request(slot)
        assert request is not None, "its slot is in order"
        table.rests.ended[LIMIT] += 1
        set_rate(table, request, float(table.readers.rate[slot]), now)


def await_ends(
    table: StreamTable[R],
    name: str,
    now: float,
    *,
    adapter: str | None = None,
    until: float = math.inf,
) -> None:
    """Something waits for streams to end: they go on, and rest no more until it is over.

    Their readers may still look away, which counts from then on.

    Args:
        table: Of the streams.
        name: Of the wait.
        now: Seconds on the table's clock.
        adapter: It waits for the streams that use this adapter; None: for all.
        until: When it gives up.
    """
    slots = table.order()
    before = rest(table, table.readers, slots)
    table.rests.begin(name, now, adapter=adapter, until=until)
    _look_again(table)
    after = rest(table, table.readers, slots)
    table.rests.ended[AWAITED] += int(np.count_nonzero(before & ~after))


def use_adapter(table: StreamTable[R], request: R, adapter: str | None) -> None:
    """The stream uses an adapter, whose end may be waited for; None: it uses none."""
    if adapter is None:
        return
    slot = table.slot(request)
    table.awaited_since[slot] = table.rests.arrive(slot, adapter)


def no_longer_awaited(table: StreamTable[R], name: str) -> None:
    """What waited does so no more: streams whose readers are still away rest again."""
    table.rests.over(name)
    _look_again(table)


def _look_again(table: StreamTable[R]) -> None:
    for slot in table.order().tolist():
        since = table.rests.since(slot)
        if since != table.awaited_since[slot]:
            table.awaited_since[slot] = since
            table.phases.changed(slot)
