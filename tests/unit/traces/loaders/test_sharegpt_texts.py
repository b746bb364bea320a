"""ShareGPT's conversations as texts: counted, never taken over."""

from __future__ import annotations

import json

import pytest

from tokenflow_sgl.lab.traces import TraceError, open_trace

SECRET = "Wittgenstein"
KEYS = "?arrivals=poisson&rate=2&chars_per_token=4"


def talk(*turns: tuple[str, object]) -> dict:
    return {"id": SECRET, "conversations": [{"from": who, "value": said} for who, said in turns]}


def opened(write, *talks: object, keys: str = KEYS, indent: int | None = None):
    return open_trace(f"sharegpt:{write(json.dumps(talks, indent=indent), 'talks.json')}{keys}")


def test_answers_are_requests_with_all_before_them(write, is_balanced) -> None:
    trace = opened(
        write,
        talk(
            ("gpt", "x" * 8),  # the end of a conversation that was split
            ("human", "x" * 40),
            ("gpt", "x" * 10),
            ("gpt", "x" * 4),
            ("user", ""),
            ("GPT", "x" * 12),
            ("human", "x"),
            ("gpt", ""),
        ),
        talk(("system", "x" * 4), ("human", "x" * 4), ("bing", "\ud800" * 4)),
        talk(("human", "x")),
        {
            "conversations": [
                {"role": "user", "content": "xy"},
                {"role": "assistant", "content": "z"},
            ]
        },
        indent=2,
        keys=f"{KEYS}&think=3",
    )
    first = [each for each in trace.requests if each.session == "s0"]
    assert [(each.prompt_tokens, each.output_tokens) for each in first] == [(12, 3), (16, 3)]
    assert [(each.turn, each.think_s) for each in first] == [(0, 0.0), (1, 3.0)]
    assert sorted(each.prompt_tokens for each in trace.requests) == [1, 2, 12, 16]
    assert trace.accounting.dropped == {"no message before the answer": 2, "no output tokens": 1}
    assert "1 conversations have no answer." in trace.notes
    assert any("4 characters a token" in note for note in trace.notes)
    assert SECRET not in repr(trace)
    assert is_balanced(trace)


def test_a_tokenizer_counts(write, tmp_path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, "?"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    core.save(str(tmp_path / "tokenizer.json"))
    talks = talk(("human", "a b a"), ("gpt", "b \ud800"))
    for name in (tmp_path, tmp_path / "tokenizer.json"):
        trace = opened(write, talks, keys=f"?arrivals=burst&tokenizer={name}")
        assert [(each.prompt_tokens, each.output_tokens) for each in trace.requests] == [(3, 2)]
    write(SECRET, "broken.json")
    for name, problem in (("nothing", "there is no such file"), ("broken.json", "is no tokenizer")):
        with pytest.raises(TraceError) as caught:
            opened(write, talks, keys=f"?arrivals=burst&tokenizer={tmp_path / name}")
        assert problem in str(caught.value)
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("talks", "keys", "problem"),
    [
        ([talk()], "", "arrivals must be given for its conversations"),
        ([talk()], "?arrivals=burst", "has texts and no numbers of tokens: tokenizer or chars_per"),
        ([talk()], f"{KEYS}&think=-1", "think is -1.0; allowed is a number of seconds"),
        ([talk()], KEYS, "has no data rows"),
        ([talk(("gpt", SECRET))], KEYS, "none of the 1 rows is a request: 1 with no message"),
        (
            [talk(("human", "a")), {"id": SECRET}],
            KEYS,
            "object 2, column conversations: the column",
        ),
        ([{"conversations": SECRET}], KEYS, "column conversations: is a text of 12 characters"),
        ([{"conversations": [SECRET]}], KEYS, "column conversations: is a text of 12 characters"),
        ([{"conversations": [{}]}], KEYS, "object 1, column from: the column is missing"),
        ([talk(("human", None))], KEYS, "column value: is None; allowed is a string"),
        ([talk((7, "x"))], KEYS, "column from: is 7; allowed is a string"),
        ([[]], KEYS, "object 1: is no JSON object"),
    ],
)
def test_what_is_missing_or_wrong_is_said(write, talks, keys, problem) -> None:
    with pytest.raises(TraceError) as caught:
        opened(write, *talks, keys=keys)
    assert problem in str(caught.value)
    assert SECRET not in str(caught.value)


def test_numbers_need_no_counting(write) -> None:
    path = write("num_prefill_tokens,num_decode_tokens,num_total_tokens\n4,3,7\n")
    with pytest.raises(TraceError, match="this file is no JSON with conversations"):
        open_trace(f"sharegpt:{path}{KEYS}")
