"""Which prefetches go on, which begin and which are given up, in either body.

The most urgent stream has all of the room, the next one what it leaves. While it waits for more,
those behind it wait, too: what they took now would only keep it waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tokenflow_sgl.contract import Restore
from tokenflow_sgl.lifecycle.actuator import Action, Actuator
from tokenflow_sgl.lifecycle.phases import Phases
from tokenflow_sgl.offload import chunk

Started = tuple[tuple[int, int], ...]
"""Slots of which a chunk is being copied since this pass, and its tokens."""


def prefetch(
    wanted: Sequence[Restore],
    possible: Callable[[Action], bool],
    phases: Phases,
    body: Actuator,
    now: float,
) -> Started:
    """Start copies for the streams of `wanted`, most urgent first, as far as there is room.

    What is loaded in part and not among them is given up. So is, from the least urgent one on, what
    takes memory that running streams need for their next steps.

    Args:
        wanted: The decision's prefetches, in their order.
        possible: Whether a paused stream can be prefetched now.
        phases: Where the streams stand; moved along.
        body: Carries it out.
        now: The present on the body's clock.
    """
    _give_up(wanted, phases, body, now)
    if not wanted or body.prefetching:
        return ()
    at = body.room
    room = at.for_prefetch
    started: list[tuple[int, int]] = []
    for restore in wanted:
        slot = restore.slot
        begun = slot in phases.parts
        if not begun and not possible(restore):
            continue
        missing = body.missing(slot)
        tokens = 0
        if missing.tokens:
            left = room - missing.evictable
            tokens = chunk(missing.tokens, left, restore.part, at.page_size)
            if not tokens:
                break
            tokens = body.load(slot, tokens)
        if not tokens:  # there is no copy to wait for
            if begun:
                body.give_up(slot)
                phases.give_up(slot, now, ready=True)
            phases.ready[slot] = True
            continue
        rest = missing.tokens - tokens
        phases.load(slot, tokens, rest, now)
        started.append((slot, tokens))
        room -= missing.evictable + tokens
        if rest or not restore.part:
            break
    if started:
        body.start_loads()
    return tuple(started)


def _give_up(wanted: Sequence[Restore], phases: Phases, body: Actuator, now: float) -> None:
    if not phases.parts:
        return
    order = [restore.slot for restore in wanted if restore.slot in phases.parts]
    unwanted = [slot for slot in phases.parts if slot not in order]
    for slot in [*unwanted, *reversed(order)]:
        if slot in order and not body.room.scarce:
            return
        if not body.copying(slot):
            body.give_up(slot)
            phases.give_up(slot, now, ready=False)
