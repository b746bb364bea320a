"""When a policy that plans in intervals wants to be asked again."""

from __future__ import annotations

from tokenflow_sgl.contract import State


def next_look(state: State, planned: float, interval: float) -> float:
    """The next plan: an interval after the last one, or before a paused reader stalls.

    Args:
        state: As it is.
        planned: When the last plan was made.
        interval: Seconds between two plans.

    Returns:
        Seconds on the body's clock; never before `state.now` for the sake of a reader.
    """
    moment = planned + interval
    streams = state.streams
    due = streams.runs_dry.take(streams.standing.paused_index)
    due = due[due > state.now]
    if len(due):
        moment = min(moment, max(float(due.min()) - interval, state.now))
    return moment
