"""Batches of OpenAI's API: lengths from answers, or from texts and limits; never made up."""

from __future__ import annotations

import json

import pytest

from tokenflow_sgl.lab.traces import TraceError, open_trace

SECRET = "Wittgenstein"
BURST = "?arrivals=burst"


def request(name: object, **body: object) -> dict:
    content = {"model": SECRET, "messages": [{"role": "user", "content": "x" * 40}], **body}
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": content}


def answer(name: object, prompt: object, output: object, **changes: object) -> dict:
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": 0}
    body = {"choices": [{"message": {"content": SECRET}}], "usage": usage}
    response = {"status_code": 200, "request_id": SECRET, "body": body}
    return {"id": SECRET, "custom_id": name, "response": response, "error": None, **changes}


def failed(name: str) -> dict:
    return {"custom_id": name, "response": None, "error": {"code": SECRET, "message": SECRET}}


@pytest.fixture
def batch(write):
    """Opens a file of these rows."""

    def opener(*rows: dict, keys: str = BURST):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        return open_trace(f"openai-batch:{write(text, 'batch.jsonl')}{keys}")

    return opener


def lengths(trace) -> list[tuple[int, int, int | None]]:
    return [(each.prompt_tokens, each.output_tokens, each.limit_tokens) for each in trace.requests]


def test_answers_have_the_lengths_and_requests_the_limits(batch, write, is_balanced) -> None:
    answers = [answer("c", 31, 41), answer("a", 11, 21), failed("b"), answer("e", 5, 0)]
    output = write("".join(json.dumps(row) + "\n" for row in answers), "out.jsonl")
    trace = batch(
        request("a", max_tokens=100),
        request("b"),
        request("c", max_completion_tokens=7, max_tokens=900),
        request("d"),
        request("e"),
        keys=f"{BURST}&answers={output}",
    )
    assert lengths(trace) == [(11, 21, 100), (31, 41, 41)]  # a limit is never below the answer
    assert trace.accounting.dropped == {
        "an error: the request failed": 1,
        "no answer to it": 1,
        "no output tokens": 1,
    }
    assert is_balanced(trace)


def test_answers_are_a_trace_by_themselves(batch) -> None:
    thinking = answer("a", 10, 20)
    thinking["response"]["body"]["usage"]["completion_tokens_details"] = {"reasoning_tokens": 15}
    responses = answer("b", 1, 1)
    responses["response"]["body"]["usage"] = {
        **{"input_tokens": 30, "output_tokens": 40},
        "output_tokens_details": {"reasoning_tokens": 99},
    }
    without = answer("c", 1, 1)
    del without["response"]["body"]["usage"]
    late = answer("d", 1, 1)
    late["response"]["status_code"] = 504
    trace = batch(thinking, responses, without, late, keys="?arrivals=poisson&rate=2")
    assert [each.reasoning_tokens for each in trace.requests] == [15, 40]
    assert trace.requests[1].arrival_s > trace.requests[0].arrival_s
    assert trace.accounting.dropped == {
        "no usage in the answer": 1,
        "an error: the request failed": 1,
    }


def test_texts_and_limits_are_lengths_if_that_is_wanted(batch) -> None:
    parts = [{"type": "text", "text": "y" * 9}, {"type": "image_url", "image_url": {"url": "z"}}]
    trace = batch(
        request("a", max_tokens=50),
        request("b", messages=[{"role": "user", "content": parts}], max_tokens=60),
        request("c", messages=None, prompt=["ab", "cd"], max_tokens=70),
        request("d", messages=None, prompt=[1, 2, 3, 4, 5], max_tokens=80),
        request("e", messages=None, instructions="four", input="more", max_output_tokens=90),
        request("f"),
        keys=f"{BURST}&outputs=limit&chars_per_token=4",
    )
    assert lengths(trace) == [(10, 50, 50), (3, 60, 60), (2, 70, 70), (5, 80, 80), (2, 90, 90)]
    assert trace.accounting.dropped == {"no limit of the answer": 1}
    assert any("4 characters a token" in note for note in trace.notes)


@pytest.mark.parametrize(
    ("rows", "keys", "problem"),
    [
        ([request("a")], "", "the file has no times; arrivals must be given for its requests"),
        ([request("a")], BURST, "give the batch's output file, as answers=PATH, load that file"),
        ([request("a")], f"{BURST}&outputs=limit", "no numbers of tokens: tokenizer or chars_per"),
        ([request("a")], f"{BURST}&outputs=x", "outputs is 'x'; allowed is limit"),
        ([request("a")], f"{BURST}&answers=x&outputs=limit", "answers has all lengths"),
        ([request("a")], f"{BURST}&answers=/nowhere", "/nowhere: cannot be read: No such file"),
        ([request("a")], f"{BURST}&chars_per_token=0", "chars_per_token is 0; allowed is a number"),
        ([request("a")], f"{BURST}&chars_per_token=nan", "chars_per_token is nan; allowed is a nu"),
        ([request("a")], f"{BURST}&chars_per_token=1&tokenizer=x", "exclude each other"),
        (
            [request("a", max_tokens=0)],
            BURST,
            "line 1, column max_tokens: is 0; allowed is a whole",
        ),
        ([request("a", max_tokens=10**99)], BURST, "column max_tokens: is 1000000"),
        ([request(7)], BURST, "line 1, column custom_id: is 7; allowed is a string"),
        ([answer("a", 1, 1)] * 2, BURST, "line 2, column custom_id: is there twice in the file"),
        ([{"custom_id": "a"}], BURST, "line 1, column body: the column is missing; a line of a"),
        ([{"body": {}}], BURST, "line 1, column custom_id: the column is missing; a line of a"),
        ([{**request("a"), "body": SECRET}], BURST, "column body: is a text of 12 characters"),
        ([answer("a", -1, 1)], BURST, "line 1, column prompt_tokens: is -1; allowed is a whole"),
        ([answer("a", 1, SECRET)], BURST, "column completion_tokens: is a text of 12 characters"),
        ([answer("a", 1, True)], BURST, "column completion_tokens: is True; allowed is a whole"),
        (
            [failed("a")],
            BURST,
            "none of the 1 rows is a request: 1 with an error: the request fail",
        ),
        ([], BURST, "is empty"),
    ],
)
def test_what_is_missing_or_wrong_is_said(batch, rows, keys, problem) -> None:
    with pytest.raises(TraceError) as caught:
        batch(*rows, keys=keys)
    assert problem in str(caught.value)
    assert SECRET not in str(caught.value)


def test_requests_are_no_answers(batch, write) -> None:
    path = write(json.dumps(request("a")), "in.jsonl")
    with pytest.raises(TraceError, match="answers must be the batch's output file"):
        batch(request("a"), keys=f"{BURST}&answers={path}")
