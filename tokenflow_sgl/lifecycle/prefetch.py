"""Which prefetch goes on, which begins and which is given up, in either body.

The link serves one stream at a time, the most urgent one first: side by side each would take as
long as all of them together. Several may be loaded in part, if a more urgent one came between.
While the most urgent one waits for memory, those behind it wait, too: what they took now would only
keep it waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tokenflow_sgl.contract import Restore
from tokenflow_sgl.lifecycle.actuator import Action, Actuator
from tokenflow_sgl.lifecycle.phases import Phases
from tokenflow_sgl.offload import chunk


def prefetch(
    wanted: Sequence[Restore],
    possible: Callable[[Action], bool],
    phases: Phases,
    body: Actuator,
    now: float,
) -> tuple[int, int] | None:
    """Start a copy for the most urgent stream of `wanted` that needs one, as far as there is room.

    What is loaded in part and not among them is given up. So is, from the least urgent one on, what
    takes memory that running streams need for their next steps.

    Args:
        wanted: The decision's prefetches, in their order.
        possible: Whether a paused stream can be prefetched now.
        phases: Where the streams stand; moved along.
        body: Carries it out.
        now: The present on the body's clock.

    Returns:
        The slot, and the tokens that are being copied; None: nothing is, since this pass.
    """
    if phases.parts:
        _make_way(wanted, phases, body, now)
    if not wanted or body.prefetching:
        return None
    room = body.room
    for restore in wanted:
        slot = restore.slot
        begun = slot in phases.parts
        if not begun and not possible(restore):
            continue
        missing = body.missing(slot)
        tokens = 0
        if missing.tokens:
            left = room.for_prefetch - missing.evictable
            tokens = chunk(missing.tokens, left, restore.part, room.growth.page_size)
            if not tokens:
                return None  # the most urgent stream waits for its memory
            tokens = body.load(slot, tokens)
        if tokens:
            phases.load(slot, tokens, missing.tokens - tokens, now)
            return slot, tokens
        # There is no copy to wait for.
        if begun:
            body.give_up(slot)
            phases.give_up(slot, now)
        phases.ready[slot] = True
    return None


def give_up(phases: Phases, body: Actuator, now: float, among: Sequence[int] | None = None) -> bool:
    """Give up what is loaded in part, but for chunks on their way; returns whether there was any.

    Args:
        phases: Where the streams stand; moved along.
        body: Carries it out.
        now: The present on the body's clock.
        among: Slots of streams that are loaded in part; None: all of them.
    """
    given = False
    for slot in tuple(phases.parts) if among is None else among:
        if not body.copying(slot):
            body.give_up(slot)
            phases.give_up(slot, now)
            given = True
    return given


def _make_way(wanted: Sequence[Restore], phases: Phases, body: Actuator, now: float) -> None:
    """What is no longer wanted goes, and from the least urgent on what running streams need."""
    order = [restore.slot for restore in wanted if restore.slot in phases.parts]
    give_up(phases, body, now, [slot for slot in phases.parts if slot not in order])
    for slot in reversed(order):
        if not body.room.scarce:
            return
        give_up(phases, body, now, (slot,))
