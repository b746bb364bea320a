"""What the loader makes of BurstGPT files, by hand."""

from __future__ import annotations

import pytest

from tokenflow_sgl.lab.traces import TraceError
from tokenflow_sgl.lab.traces.loaders import load_burstgpt

BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,API log
120,GPT-4,0,0,0,API log
121,GPT-4,10,20,31,API log
122,GPT-4,0,20,20,API log
"""


def test_burstgpt_accounts_for_every_row(write, is_balanced):
    trace = load_burstgpt(write(BURSTGPT, "BurstGPT_1.csv"))
    assert is_balanced(trace)
    assert trace.name == "BurstGPT_1"
    assert trace.accounting.rows == 6
    assert trace.accounting.dropped == {
        "no response tokens: the request failed": 2,
        "total tokens differ from request plus response tokens": 1,
        "no prompt tokens": 1,
    }
    assert [(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in trace.requests] == [
        (0.0, 472, 18),
        (113.0, 417, 276),
    ]
    assert trace.requests[0].rate is None  # the file does not say


def test_burstgpt_filters_are_accounted(write):
    trace = load_burstgpt(write(BURSTGPT), model="ChatGPT", log_type="Conversation log")
    assert trace.accounting.dropped["model is not ChatGPT"] == 4
    assert len(trace.requests) == 1
    trace = load_burstgpt(write(BURSTGPT), log_type="API log")
    assert trace.accounting.dropped["log type is not API log"] == 2
    assert trace.requests[0].arrival_s == 113.0  # the zero is the first row, kept or not


def test_burstgpt_takes_columns_by_name(write):
    text = (
        "Session ID,Elapsed time,Log Type,Total tokens,Response tokens,Request tokens,Model,"
        "Timestamp\nx,1.5,API log,3,2,1,GPT-4,7.25\n"
    )
    trace = load_burstgpt(write(text))
    assert trace.requests[0].prompt_tokens == 1
    assert "whole seconds" not in " ".join(trace.notes)


def test_late_rows_are_counted_against_the_latest_before_them(write):
    rows = "".join(f"{time},a,1,{time},{time + 1},b\n" for time in (5, 3, 4, 6))
    trace = load_burstgpt(write(BURSTGPT.splitlines()[0] + "\n" + rows), sort=True)
    assert [r.output_tokens for r in trace.requests] == [3, 4, 5, 6]
    assert "2 rows were out of order; rows were sorted by time." in trace.notes


def test_nothing_left_is_an_error(write):
    with pytest.raises(TraceError, match="none of the 6 rows is a request: 6 with model is not x"):
        load_burstgpt(write(BURSTGPT), model="x")
