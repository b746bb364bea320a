"""What prompts may take of a step in which readers get a token, too.

A step reads the weights once and computes the rows that decode; the longer it is, the less of it
these take, so the sooner prompts are done. It is as long as newcomers need to be in time, and never
so long that a reader notices: where prompts keep coming, text is slower with each longer step.
"""

from __future__ import annotations

from tokenflow_sgl.contract import State

UNNOTICED = 0.075
"""Seconds beyond the time in which a token is read, three quarters of what counts as a stall:
readers who wait for no longer do not notice it. The rest is for steps that take longer than
expected."""
FAIR_SHARE = 2.0
"""Time of prompts in a mixed step, over all the rest of it, which readers bear for any newcomer.
With shorter chunks a prompt pays for the weights and the rows more often than for itself."""
LEAST_SHARE = 0.5
"""Time of prompts in a mixed step at least, over all the rest of it: where readers are nearly as
fast as the engine, they leave no time for prompts otherwise."""
MEANWHILE = 0.25
"""Of a prefill's own engine time, what prefills take that come meanwhile and go before it."""


def rest_of_step(state: State) -> float:
    """Seconds of a mixed step that no prompt gets: of its launch, the weights, and its readers.

    The cost of a prefill must be known.
    """
    assert state.costs.prefill is not None
    return state.costs.prefill[0] + state.decode_seconds - state.costs.decode_seconds(0, 0)


def unnoticed(rest: float, pace: float) -> float:
    """Seconds that prompts may take in a mixed step at most, so that no reader notices.

    Args:
        rest: Of the step, see `rest_of_step`.
        pace: Seconds in which the fastest reader reads what a step generates for it.
    """
    return max(pace + UNNOTICED - rest, LEAST_SHARE * rest)


def fair(rest: float, most: float, needed: float) -> float:
    """Seconds that prompts get in a mixed step, whatever readers have unread.

    Args:
        rest: Of the step, see `rest_of_step`.
        most: That prompts may take, see `unnoticed`.
        needed: Share of the time that prompts need, 0.0 to 1.0, see `on_time.share_needed`.
    """
    urgent = needed * rest / (1.0 - needed) if needed < 1.0 else most
    return min(most, max(FAIR_SHARE * rest, urgent))


def elapsed_per_second(state: State) -> float:
    """Seconds that pass while one of a prefill is computed, expected; at least 1.0."""
    reading = state.streams.read_index
    if state.costs.prefill is None or not len(reading):
        return 1.0 + MEANWHILE
    rest = rest_of_step(state)
    pace = state.costs.tokens_per_step / float(state.streams.rate.take(reading).max())
    return 1.0 + MEANWHILE + rest / unnoticed(rest, pace)
