"""What the loader makes of agent runs, by hand."""

from __future__ import annotations

import pytest

from tokenflow_sgl.lab.traces import TraceError
from tokenflow_sgl.lab.traces.generators.arrivals import BurstArrivals
from tokenflow_sgl.lab.traces.loaders import Think, load_agent

AGENT = """\
instance_id,step,offset_s,created_unix,prompt_tokens,completion_tokens,cached_tokens
b,0,0,1000,10,100,0
b,1,5,1005,130,60,0
b,2,6,1006,200,10,0
a,0,0,997,10,20,0
a,1,9,1006,40,0,0
a,2,12,1009,50,30,0
"""


@pytest.mark.parametrize(
    ("think", "rate", "thinks"),
    [
        (Think.gap, None, {("b", 1): 5, ("b", 2): 1, ("a", 1): 12}),
        (Think.none, None, {("b", 1): 0, ("b", 2): 0, ("a", 1): 0}),
        # 5 - 100 / 50; 1 - 60 / 50 is below 0; 12 - 20 / 50
        (Think.estimate, 50.0, {("b", 1): 3, ("b", 2): 0, ("a", 1): 11.6}),
    ],
)
def test_agent_think_times(think, rate, thinks, write, is_balanced):
    trace = load_agent(write(AGENT), think=think, provider_rate=rate)
    assert is_balanced(trace)
    assert trace.accounting.dropped == {"no output tokens": 1}
    assert {(r.session, r.turn): r.think_s for r in trace.requests if r.turn} == thinks
    assert [(r.session, r.turn, r.arrival_s) for r in trace.requests] == [
        ("a", 0, 0.0),
        ("b", 0, 3.0),
        ("b", 1, 8.0),
        ("b", 2, 9.0),
        ("a", 1, 12.0),
    ]
    assert ("1 gaps were shorter" in trace.notes[-1]) == (think is Think.estimate)


def test_agent_reasoning_is_read_where_the_file_has_it(write):
    header = AGENT.splitlines()[0] + ",reasoning_tokens\n"
    text = header + "a,0,0,1000,10,100,0,70\na,1,5,1005,130,60,0,0\na,2,6,1006,200,10,0,12\n"
    trace = load_agent(write(text), think=Think.none)
    assert [r.reasoning_tokens for r in trace.requests] == [70, 0, 10]
    assert trace.notes[-1].startswith("1 answers state more reasoning than tokens")
    assert not any(r.reasoning_tokens for r in load_agent(write(AGENT), think=Think.none).requests)


def test_agent_refuses_reasoning_that_is_no_number(write):
    text = AGENT.splitlines()[0] + ",reasoning_tokens\na,0,0,1000,10,100,0,x\n"
    with pytest.raises(TraceError, match="line 2, column reasoning_tokens: is a text of 1 char"):
        load_agent(write(text), think=Think.none)


def test_agent_offsets_need_not_begin_at_0(write):
    text = AGENT.splitlines()[0] + "\na,0,3,1003,1,1,0\na,1,5,1005,9,1,0\nb,0,0,1001,1,1,0\n"
    trace = load_agent(write(text), think=Think.gap)
    assert [(r.session, r.arrival_s) for r in trace.requests] == [("b", 1), ("a", 3), ("a", 5)]


def test_agent_starts_can_be_drawn(write):
    arrivals = BurstArrivals(size=1, every_s=100)
    trace = load_agent(write(AGENT), think=Think.none, arrivals=arrivals)
    starts = {r.session: r.arrival_s for r in trace.requests if r.turn == 0}
    assert starts == {"b": 0.0, "a": 100.0}
    assert "burst:size=1,every_s=100" in trace.notes[1]


@pytest.mark.parametrize(("think", "rate"), [(Think.estimate, None), (Think.gap, 50.0)])
def test_agent_rate_belongs_to_estimate(think, rate, write):
    with pytest.raises(TraceError, match="think=estimate"):
        load_agent(write(AGENT), think=think, provider_rate=rate)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("a,4,13,1010,5,5,0", "column step: is '4'; allowed is 3"),
        ("a,3,11,1008,5,5,0", "column offset_s: is earlier than the call before it"),
        ("b,0,0,1010,5,5,0", "column instance_id: is a text of 1 char"),
        ("c,1,0,1010,5,5,0", "column step: is '1'; allowed is 0"),
    ],
)
def test_agent_refuses_broken_runs(row, problem, write):
    with pytest.raises(TraceError, match=f"line 8, {problem}"):
        load_agent(write(AGENT + row), think=Think.none)


def test_a_run_without_a_name_is_refused(write):
    head, first, *rest = AGENT.splitlines()
    path = write("\n".join([head, first.removeprefix("b"), *rest]))
    with pytest.raises(TraceError, match="line 2, column instance_id: is ''; allowed is the name"):
        load_agent(path, think=Think.gap)
