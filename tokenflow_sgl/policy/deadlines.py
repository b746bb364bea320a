"""Whole answers by a deadline: when such a stream must run at the latest is its slack.

A program reads no text as it comes; it wants the whole answer by a deadline. What is left of the
answer, by learned lengths, takes so many decode steps, and a prefill before the first. The time
until the deadline, less that, is the slack: as long as it is positive the stream may wait for
readers who are about to stall, like a reader who has so much unread. When it runs out, the stream
needs every step, as fast as the engine decodes. With slack and pace in place of a reader's, the
demand test adds up the work that has to be done within each horizon, which is the processor demand
criterion for deadlines (Baruah, Mok and Rosier, 1990), beside what readers ask for.

A deadline that cannot be kept any more is no reason to hurry: such streams go behind all others,
and take what is left (relegation, as QoServe does with prefills). None starves: a minute after its
deadline such a stream counts as one whose reader has run dry.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tokenflow_sgl.contract import BoolArray, FloatArray, IntArray, State
from tokenflow_sgl.qos.reader import HIGHEST_RATE, LOWEST_RATE

MARGIN = 2.0
"""Time that an answer is given, over what its steps take now: they get longer, and it may pause."""
HOPELESS = 0.1
"""Chance of coming in time below which a deadline counts as lost."""
BEHIND = 60.0
"""Seconds of slack that a stream has whose deadline is lost, until it has passed."""
SHORTEST_STEP = 1e-4
"""Seconds that a decode step counts as at least."""


def with_deadlines(state: State) -> State:
    """The state in which streams with a deadline have a reader's columns, by their slack.

    Their `rate` is the pace at which the engine decodes, their leeway the slack of the deadline;
    before their first token also their TTFT objective, where that is not sooner.
    """
    streams = state.streams
    if streams.deadline is None:
        return state
    index = np.nonzero(~np.isnan(streams.deadline))[0]
    lost, slack, pace = _slack(state, index)
    rate, next_due = streams.rate.copy(), streams.next_due.copy()
    streaming = streams.streaming.copy()
    tolerance = _column(streams.tolerance, 0.0, len(streams))
    ttft = _column(streams.ttft_slo, np.nan, len(streams))
    rate[index] = np.clip(pace, LOWEST_RATE, HIGHEST_RATE)
    streaming[index] = True
    begun = streams.generated.take(index) > 0
    next_due[index[begun]] = state.now + slack[begun]
    tolerance[index[begun]] = 0.0
    # A newcomer's wait is tolerated until its prefill must begin.
    fresh = index[~begun]
    waited = state.now - streams.arrival.take(fresh)
    tolerance[fresh] = np.maximum(slack[~begun] + waited, 0.0)
    by = waited + slack[~begun] + _prefill(state, fresh)
    ttft[fresh] = np.where(lost[~begun], np.nan, np.fmin(ttft[fresh], by))
    changed = dataclasses.replace(
        streams,
        rate=rate,
        next_due=next_due,
        streaming=streaming,
        tolerance=tolerance,
        ttft_slo=ttft,
        deadline=None,
    )
    return dataclasses.replace(state, streams=changed)


def lost_deadlines(state: State) -> int:
    """How many streams are here whose deadline cannot be kept any more."""
    deadline = state.streams.deadline
    if deadline is None:
        return 0
    lost, _, _ = _slack(state, np.nonzero(~np.isnan(deadline))[0])
    return int(np.count_nonzero(lost))


def _slack(state: State, index: IntArray) -> tuple[BoolArray, FloatArray, FloatArray]:
    """Of these streams: whether the deadline is lost, the slack, and the pace in tokens/s."""
    streams, costs = state.streams, state.costs
    assert streams.deadline is not None, "some have one"
    kind, made, limit = (
        column.take(index) for column in (streams.kind, streams.generated, streams.limit)
    )
    answers = streams.lengths.typical.remaining(kind, made, limit)
    step = state.decode_seconds or costs.decode_seconds(1, float(streams.length.mean()))
    token = max(step, SHORTEST_STEP) / costs.tokens_per_step
    until = streams.arrival.take(index) + streams.deadline.take(index) - state.now
    until -= _prefill(state, index)
    slack = until - MARGIN * answers.left * token
    # A short answer may still come in time.
    chance = 1.0 - answers.alive(np.maximum(until, 0.0) / token)
    lost = (until < 0.0) | (chance < HOPELESS)
    # It waits its turn as a reader does: its claim grows with the time since the deadline.
    slack = np.where(lost, BEHIND + np.minimum(until, 0.0), np.maximum(slack, 0.0))
    return lost, slack, np.full(len(index), 1.0 / (MARGIN * token))


def _prefill(state: State, index: IntArray) -> FloatArray:
    """Seconds of the prefills of these streams that wait for one, 0.0 for all others."""
    seconds = np.zeros(len(index))
    waits = state.streams.waiting.take(index)
    if waits.any():
        seconds[waits] = state.prefill_seconds_of(index[waits])
    return seconds


def _column(column: FloatArray | None, neutral: float, count: int) -> FloatArray:
    return np.full(count, neutral) if column is None else column.copy()
