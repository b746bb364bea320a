"""How much more work an engine can take: the demand test, read as an amount.

Admission asks whether this newcomer fits. A router asks how much would fit, before it chooses a
server, of newcomers that it does not know yet. The answer is what the same test leaves over once
all streams that are here count as admitted, the waiting ones, too: a newcomer comes after them.

Servers are compared by it once in a while, so what differs between two that are loaded alike, or
comes and goes, is left out: costs are the model's, not those measured lately, and without what it
infers from a few small steps, by whose noise an idle server would seem slow; there are no margins,
which begin at once where the streams no longer fit into memory; and that no stream joins while
readers stall is left out. With all of these, one of four servers got nearly all requests.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tokenflow_sgl.contract import State
from tokenflow_sgl.contract.needs import in_pages
from tokenflow_sgl.policy.admission import (
    HORIZONS,
    members_want,
    memory_left,
    promised_share,
    windows_left,
)
from tokenflow_sgl.policy.config import WorkingSetConfig
from tokenflow_sgl.policy.deadlines import with_deadlines
from tokenflow_sgl.policy.demand import Asking
from tokenflow_sgl.policy.supply import modelled

WITHIN = 30.0
"""Seconds within which the work is to be taken."""
_LATER = HORIZONS[HORIZONS >= WITHIN]
"""Horizons that decide: those from then on, shape (h,)."""
REFERENCE_CONTEXT = 1024.0
"""Context at which a token of newcomers' work is priced: one price, so that servers compare."""


def headroom(state: State, config: WorkingSetConfig) -> float:
    """Newcomers' work that can be taken within 30 s without making present readers stall, tokens.

    The least share of its time that the engine has left at any horizon of the demand test from
    30 s on, over 30 s, at the price of a token that is decoded at a context of 1,024; or the KV
    memory that can still be promised, if that is less. A token is one of prompt or output. Shorter
    horizons do not count: what has to be done sooner leaves as much for newcomers later.

    Below 0: so much work is here already that cannot be done in time.
    """
    return min(_left(with_deadlines(state), config))


def promised(state: State, config: WorkingSetConfig) -> float:
    """Share of the engine's memory or time that is promised, the larger of the two, within [0, 1].

    What `headroom` leaves over, as a share of what an engine without streams could take. Unlike the
    share of the memory that is in use, it says how full an engine is that fills its memory on
    purpose, and pauses streams for newcomers.
    """
    state = with_deadlines(state)
    none = state.streams.among(np.zeros(0, dtype=np.int64))
    whole = _left(replace(state, streams=none), config)
    left = zip(_left(state, config), whole, strict=True)
    least = min((now / all_ if all_ > 0.0 else 0.0) for now, all_ in left if np.isfinite(all_))
    return float(np.clip(1.0 - least, 0.0, 1.0))


def _left(state: State, config: WorkingSetConfig) -> tuple[float, float]:
    """Tokens of newcomers' work: KV that can be promised, and what can be done within 30 s.

    The latter is infinite while nothing is known of the engine's steps.
    """
    none, memory = np.zeros(0, dtype=np.int64), state.memory
    asking = Asking(state, config, np.arange(len(state.streams)), none)
    room = memory_left(state, config, asking, asking.spread)
    if memory.window.tokens:
        # Each newcomer of the reference context needs its window, too.
        part = min(in_pages(memory, REFERENCE_CONTEXT), memory.window.tokens) / REFERENCE_CONTEXT
        room = min(room, windows_left(state, config, asking) / part)
    if state.costs.decode is None:
        return room, np.inf
    priced = supply = modelled(state, REFERENCE_CONTEXT, REFERENCE_CONTEXT, inferred=False)
    if count := len(asking.length):
        own = (int(asking.own.sum()) + asking.shared) / count
        supply = modelled(state, float(asking.length.mean()), own, inferred=False)
    wanted = members_want(state, asking, _LATER[:, None], supply)
    may = promised_share(asking, _LATER, asking.crowd.item(0))
    free = float((may - wanted / _LATER).min())
    return room, WITHIN * free / (priced.token_cost * (REFERENCE_CONTEXT + priced.row))
