"""What the loader makes of inference-perf's reports on requests."""

from __future__ import annotations

import json

import pytest

from tokenflow_sgl.lab.traces import TraceError, open_trace

SECRET = "Wittgenstein"


def row(at: object, prompt: object, output: object, **changes: object) -> dict:
    metrics = {"text": {"input_tokens": prompt}, "image": None, "video": None, "audio": None}
    response = {"output_tokens": output, "server_usage": None, "output_token_times": [1.0]}
    info = {"request_metrics": metrics, "response_metrics": response, "labels": {}}
    return {
        **{"start_time": at, "end_time": 9000.0, "request": f'{{"prompt": "{SECRET}"}}'},
        **{"response": SECRET, "info": {**info, "input_tokens": prompt}, "error": None},
        **changes,
    }


def opened(write, *rows: dict, indent: int | None = 2):
    return open_trace(f"inference-perf:{write(json.dumps(rows, indent=indent), 'per.json')}")


def test_requests_arrive_as_they_were_sent(write, is_balanced) -> None:
    seen = row(3007.5, 30, 40)
    seen["info"]["request_metrics"]["image"] = {"count": 1}
    served = row(3002.0, 50, 0)
    served["info"]["response_metrics"]["server_usage"] = {"completion_tokens": 60}
    old = row(3001.0, 1, 1, info={"input_tokens": 70, "output_tokens": 80, "lora_adapter": None})
    broken = row(3000.0, 5, 5, error={"error_type": SECRET, "error_msg": SECRET})
    lost = row(3000.0, 5, 5, info=None)
    mute = row(3000.0, 5, 5)
    mute["info"]["response_metrics"] = {"output_tokens": 0}
    trace = opened(write, seen, served, old, broken, lost, mute)
    assert [
        (each.arrival_s, each.prompt_tokens, each.output_tokens) for each in trace.requests
    ] == [
        (0.0, 70, 80),
        (1.0, 50, 60),
        (6.5, 30, 40),
    ]
    assert {each.session for each in trace.requests} == {None}
    assert trace.accounting.dropped == {
        "an error: the request failed": 1,
        "no information on the request": 1,
        "no output tokens": 1,
    }
    assert "1 requests have images, videos or audio, which are not counted." in trace.notes
    assert is_balanced(trace)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"hello": SECRET}], "object 1, column start_time: the column is missing"),
        ([row(0, 1, 1), row(-1, 1, 1)], "object 2, column start_time: is -1; allowed is a number"),
        ([row(float("nan"), 1, 1)], "object 1, column start_time: is nan; allowed is a number"),
        ([row(float("inf"), 1, 1)], "object 1, column start_time: is inf; allowed is a number"),
        ([row(0, "5", 1)], "column input_tokens: is '5'; allowed is a whole number from 0"),
        ([row(0, 1, 2**31)], "column output_tokens: is 2147483648; allowed is a whole number"),
        ([row(0, 1, 1, info=SECRET)], "column info: is a text of 12 characters; allowed is an"),
        ([row(0, 1, 1, info={})], "column input_tokens: the column is missing"),
        ([], "has no data rows"),
    ],
)
def test_what_is_wrong_is_said(write, rows, problem) -> None:
    with pytest.raises(TraceError) as caught:
        opened(write, *rows)
    assert problem in str(caught.value)
    assert SECRET not in str(caught.value)
