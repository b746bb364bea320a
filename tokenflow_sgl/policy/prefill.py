"""How long the next step of a prefill may be, and whether decoding goes first."""

from __future__ import annotations

import dataclasses

import numpy as np

from tokenflow_sgl.contract import IntArray, Prefill, State
from tokenflow_sgl.policy.config import SLO, WorkingSetConfig
from tokenflow_sgl.policy.mixed_steps import fair, rest_of_step, unnoticed
from tokenflow_sgl.policy.on_time import share_needed
from tokenflow_sgl.policy.tenant_turns import PrefillTurn
from tokenflow_sgl.policy.urgency import leeway, reader_runs_dry

CATCHES_UP = 0.5
"""Of the time in which a token is read, the longest step beside which a reader catches up whose
tenant comes before the prefill's."""
QUANTUM = 0.03
"""Seconds of a step of a tenant that was given more than another: a newcomer of that one waits for
the end of two such steps, the one under way and the one that is planned."""
SHORTEST_CHUNK = 256
"""Prefill steps below this many tokens cost more in launches than they spare a reader."""


def prefill_gate(
    state: State, config: WorkingSetConfig, run: IntArray, turn: PrefillTurn | None = None
) -> Prefill:
    """What the next prefill step may be.

    A mixed step gives each reader a token, so it is not held back for them, unless even the
    shortest one takes longer than a reader takes to read that: on slow devices readers would stall
    for half of a long prompt. There it waits until all of them have text for its time.

    Args:
        state: As it is.
        config: Parameters of the policy.
        run: Streams that are to start or resume, as indices.
        turn: Which tenant's it is; None: tenants make no difference.
    """
    begun = None
    if turn is not None:
        state, begun = _seen_by(state, turn), turn.begun
    limit, slow = _limit(state, config, run, turn)
    hold = reader_would_stall(state, config, run)
    if not (hold and slow and limit is not None):
        return Prefill(hold=hold, limit=limit, begun=begun)
    seconds = float(state.costs.prefill_seconds(limit)) + state.decode_seconds
    hold_mixed = reader_runs_dry(state, seconds)
    return Prefill(hold=True, hold_mixed=hold_mixed, limit=limit, begun=begun)


def _seen_by(state: State, turn: PrefillTurn) -> State:
    """The state in which only those have readers that the step may have to be shorter for."""
    if turn.reads.all():
        return state
    streams = dataclasses.replace(state.streams, streaming=state.streams.streaming & turn.reads)
    return dataclasses.replace(state, streams=streams)


def _limit(
    state: State, config: WorkingSetConfig, run: IntArray, turn: PrefillTurn | None
) -> tuple[int | None, bool]:
    """Tokens of a prefill step during which no reader stalls, or which decoding keeps pace with.

    Within [`SHORTEST_CHUNK`, prefill_chunk] while streams with a reader decode, and at least what
    is `fair` where no reader has an objective; else None, the engine's own limit. And whether the
    step should be shorter than `SHORTEST_CHUNK`.

    Among tenants, newcomers that begin beside another's prompt do so as a whole, and what readers
    have who come before a prefill is not spent on it: they catch up beside it.
    """
    if turn is not None and turn.tokens is not None:
        return turn.tokens, False
    streams, costs = state.streams, state.costs
    longest = config.prefill_chunk
    # What thinks has no reader to stall: shorter chunks would only delay the newcomers. A newcomer
    # in its prefill counts as one that stalls: else its chunks spend what the others have unread.
    # On 4090-b, 38 % of the readers stalled then instead of 8 %, and less was effective.
    reading = streams.read_index
    quantum = np.inf if turn is None or not turn.first.any() else QUANTUM
    if not len(reading):
        streamed = streams.streaming.take(streams.running_index).any()
        if not np.isfinite(quantum) or costs.prefill is None:
            return (longest if streamed else None), False
    if costs.prefill is None:
        return longest, False
    _, per_token, per_work = costs.prefill
    begun = _begun(state)
    cost = per_token + per_work * _prefix(state, run, begun)
    if np.isfinite(quantum):
        longest = min(max(int(quantum / cost), SHORTEST_CHUNK), longest) if cost > 0.0 else longest
    if not len(reading):
        return longest, False
    ahead = leeway(state).take(reading)
    # A stream gets a decode step's tokens per prefill step, beside it or between two: steps in
    # which its reader reads as many do not make it worse.
    pace = costs.tokens_per_step / streams.rate.take(reading)
    bearable = np.maximum(ahead, pace)
    if streams.tbt_slo is not None:
        bearable = np.fmin(bearable, streams.tbt_slo.take(reading))
    rest = rest_of_step(state)
    seconds = float(bearable.min()) - rest
    if streams.tbt_slo is None or np.isnan(streams.tbt_slo.take(reading)).all():
        most = unnoticed(rest, float(pace.min()))
        if seconds < most:
            needed = 0.0 if config.admission == SLO else share_needed(state, run, begun)
            seconds = max(seconds, fair(rest, most, needed))
    if turn is not None and (first := turn.first.take(reading)).any():
        seconds = min(seconds, float(np.maximum(ahead, CATCHES_UP * pace)[first].min()) - rest)
    most = seconds / cost if cost > 0.0 else np.inf
    return int(min(max(most, min(SHORTEST_CHUNK, longest)), longest)), most < SHORTEST_CHUNK


def _begun(state: State) -> IntArray:
    """Streams whose prefills are under way."""
    streams = state.streams
    if not state.memory.kv.promised:
        return streams.running_index[:0]
    running = streams.running_index
    return np.asarray(running[streams.generated.take(running) == 0])


def _prefix(state: State, run: IntArray, begun: IntArray) -> int:
    """Tokens that a chunk attends to besides itself, at most: of its prompt, or cached."""
    streams, promised = state.streams, state.memory.kv.promised
    before = 0
    if streams.on_host is not None:
        before = int(streams.on_host[run[streams.waiting[run]]].max(initial=0))
    if promised:
        before = max(before, int(streams.prompt.take(begun).max(initial=0)) - promised)
    return before


def reader_would_stall(state: State, config: WorkingSetConfig, run: IntArray) -> bool:
    """Whether a decode step must come before the next prefill chunk.

    Prefill still gets at least 1 / (1 + prefill_guard) of the time.

    Args:
        state: As it is.
        config: Parameters of the policy.
        run: Streams that are to start or resume, as indices.
    """
    streams, costs = state.streams, state.costs
    promised = state.memory.kv.promised
    if not (len(run) or promised) or costs.prefill is None:
        return False
    spent = state.now - state.last_prefill_end
    if spent >= config.prefill_guard * state.last_prefill_seconds:
        return False
    reading = streams.read_index
    if not len(reading):
        return False
    fresh = run[streams.waiting[run]]
    tokens = min(promised + int(streams.uncached[fresh].sum()), config.prefill_chunk)
    least = float(leeway(state).take(reading).min())
    return least < costs.prefill_seconds(tokens)
