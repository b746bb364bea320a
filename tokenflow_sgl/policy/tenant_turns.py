"""Whose prefill is next, among tenants: who was given least starts, and steps of others are short.

What each has been given is of `tenancy`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.contract import BoolArray, IntArray, State
from tokenflow_sgl.policy.tenancy import Service, TenantView, due, given
from tokenflow_sgl.policy.urgency import leeway

AHEAD = 0.2
"""Engine seconds, over the weight, that a tenant must have been given more than another to be
behind it in prefills: less is what one step or one prompt makes."""
FAR_LONGER = 4
"""Multiple of a newcomer's prompt that is left of another's for which it does not wait."""
LEAST_BEGUN = 64
"""Tokens of a prompt under way that a step computes while another tenant's newcomer goes before."""


@dataclass(frozen=True, slots=True, eq=False)
class PrefillTurn:
    """Whose turn the next prefill step is, among tenants.

    Attributes:
        reads: Which streams' readers it may not let stall, shape (n,): those of tenants that were
            given clearly more than the one whose turn it is do not count.
        first: Which of these come before it, (n,): of tenants that were given clearly less.
        tokens: Of the step, so that newcomers begin beside the prompt of a tenant that was given
            more, of which earlier steps computed a part; None: none does.
        begun: See `Prefill`.
    """

    reads: BoolArray
    first: BoolArray
    tokens: int | None
    begun: int | None


def own_step(state: State, view: TenantView, service: Service, run: tuple[int, ...]) -> IntArray:
    """Slots that start or resume in the next step: only those of whoever was given least.

    A newcomer waits for all that its step computes and loads, so what others resume comes after it.

    Args:
        state: As it is.
        view: Its tenants.
        service: What they have been given.
        run: Slots that are to, most urgent first.
    """
    slots = np.array(run, dtype=np.int64)
    if len(slots) < 2:
        return slots
    of_each = due(state, view, service).take(state.streams.find(slots))
    return np.asarray(slots[of_each <= of_each.min() + AHEAD])


def _bear(state: State, reads: IntArray, tokens: int) -> bool:
    """Whether these streams' readers bear a step of so many tokens, or a wait is far longer."""
    ahead = leeway(state).take(reads)
    least = float(ahead.min()) if len(ahead) else np.inf
    seconds = float(state.costs.prefill_seconds(float(tokens))) + state.decode_seconds
    return least >= seconds or state.memory.kv.promised >= FAR_LONGER * tokens


def prefill_turn(
    state: State, view: TenantView, service: Service, run: IntArray, longest: int
) -> PrefillTurn | None:
    """Whose turn the next prefill step is; None: it is no tenant's, none is computed.

    Args:
        state: As it is.
        view: Its tenants.
        service: What they have been given.
        run: Streams that are to start or resume in it, as indices, most urgent first.
        longest: Tokens of a step at most in which a prompt begins beside another.
    """
    streams = state.streams
    of_each = given(view, service)
    fresh = run[streams.waiting.take(run)]
    part = None if service.part is None else int(streams.find([service.part[0]])[0])
    if not len(fresh) and part is None:
        return None
    begun = None
    tokens = None
    turn_of = of_each.item(fresh[0] if part is None else part)
    dues = due(state, view, service)
    if part is not None and len(fresh) and dues.item(fresh[0]) < dues.item(part) - AHEAD:
        # Two prompts cannot be computed in part at a time: those that begin are as a whole.
        together = LEAST_BEGUN + streams.uncached.take(fresh).cumsum()
        turn_of = of_each.item(fresh[0])
        reads = streams.read_index
        reads = reads[of_each.take(reads) <= turn_of + AHEAD]
        fits = int(together.searchsorted(longest, side="right"))
        if not fits and together[0] <= state.chunk and _bear(state, reads, together.item(0)):
            fits = 1
        # What ends before long is not worth a step that the newcomer's own readers have to bear.
        if fits and state.memory.kv.promised > together.item(0):
            begun, tokens = LEAST_BEGUN, together.item(fits - 1)
    return PrefillTurn(
        reads=of_each <= turn_of + AHEAD,
        first=of_each < turn_of - AHEAD,
        tokens=tokens,
        begun=begun,
    )
