"""What clients allow: a trace's own limit, the default, or the answer's length."""

from __future__ import annotations

from tokenflow_sgl.lab.traces import TraceRequest
from tokenflow_sgl.lab.traces.output_limits import DEFAULT_LIMIT, REASONING_LIMIT, client_limits

PLAIN = TraceRequest(0.0, 10, 57)
OWN = TraceRequest(0.0, 10, 57, limit_tokens=800)
THINKING = TraceRequest(0.0, 10, 57, reasoning_tokens=40)
LONG = TraceRequest(0.0, 10, 5000)


def test_a_client_allows_what_the_trace_says_else_the_default():
    assert client_limits((PLAIN, OWN)) == [DEFAULT_LIMIT, 800]


def test_those_that_state_none_have_one_limit_which_tells_nothing_of_them():
    assert client_limits((PLAIN, OWN, THINKING)) == [REASONING_LIMIT, 800, REASONING_LIMIT]
    assert client_limits((PLAIN, OWN, LONG)) == [2 * DEFAULT_LIMIT, 800, 2 * DEFAULT_LIMIT]


def test_known_lengths_are_the_answers_lengths():
    assert client_limits((PLAIN, OWN, THINKING), known_lengths=True) == [57, 57, 57]


def test_a_limit_is_cut_to_the_room_but_not_below_the_answer():
    assert client_limits((PLAIN, OWN, LONG), room=(100, 1000, 100)) == [100, 800, 5000]
