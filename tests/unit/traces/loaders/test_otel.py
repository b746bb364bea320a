"""Spans of OpenTelemetry: which become requests, and which sessions."""

from __future__ import annotations

import json

import pytest

from tokenflow_sgl.lab.traces import TraceError, open_trace
from tokenflow_sgl.lab.traces.loaders import otel

SECRET = "Wittgenstein"
START = 1_760_000_000_000_000_000
SECOND = 1_000_000_000
NEW = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
OLD = ("gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens")


def value(of: object) -> dict:
    if isinstance(of, int):
        return {"intValue": str(of)}  # as OTLP's JSON has 64 bits
    return {"doubleValue": of} if isinstance(of, float) else {"stringValue": of}


def span(number: int, at: float, took: float, parent: str = "", **changes: object) -> dict:
    attributes = changes.pop("attributes", {})
    assert isinstance(attributes, dict)
    begin = START + round(at * SECOND)
    return {
        **{"traceId": "5b8e", "spanId": f"s{number}", "parentSpanId": parent, "name": SECRET},
        **{"startTimeUnixNano": str(begin), "endTimeUnixNano": str(begin + round(took * SECOND))},
        "attributes": [{"key": key, "value": value(of)} for key, of in attributes.items()],
        **changes,
    }


def call(number: int, at: float, took: float = 1.0, names=NEW, **changes: object) -> dict:
    more = changes.pop("more", {})
    assert isinstance(more, dict)
    tokens = dict(zip(names, (100 + number, 10 + number), strict=True))
    return span(number, at, took, **{"attributes": {**tokens, **more}, **changes})


def export(*spans: dict) -> dict:
    return {"resourceSpans": [{"scopeSpans": [{"scope": {"name": SECRET}, "spans": list(spans)}]}]}


def opened(write, *documents: dict, keys: str = "", indent: int | None = None):
    text = "\n".join(json.dumps(each, indent=indent) for each in documents)
    return open_trace(f"otel:{write(text, 'spans.json')}{keys}")


@pytest.mark.parametrize("indent", [None, 2])
def test_calls_begin_as_in_the_file(write, is_balanced, indent) -> None:
    later, first = call(1, 2.5, names=OLD), call(2, 0.25, more={"gen_ai.request.max_tokens": 40.0})
    trace = opened(write, export(later), export(first, span(3, 0, 9)), indent=indent)
    assert [
        (each.arrival_s, each.prompt_tokens, each.output_tokens) for each in trace.requests
    ] == [
        (0.0, 102, 12),
        (2.25, 101, 11),
    ]
    assert [each.limit_tokens for each in trace.requests] == [40, None]
    assert {each.session for each in trace.requests} == {None}
    assert trace.accounting.dropped == {"no numbers of tokens": 1}
    assert is_balanced(trace)


def test_calls_of_one_conversation_are_turns(write) -> None:
    name = {"gen_ai.conversation.id": SECRET}
    trace = opened(
        write,
        export(
            call(1, 0, 2, more=name),
            call(2, 5, 1, more=name),
            call(3, 5.5, 4, more=name),
            call(4, 1, more={"session.id": "other"}),
        ),
    )
    turns = [each for each in trace.requests if each.session == "s0"]
    assert [(each.turn, each.think_s) for each in turns] == [(0, 0.0), (1, 3.0), (2, 0.0)]
    assert any("1 turns began before the answer before them" in note for note in trace.notes)
    assert SECRET not in repr(trace)


def test_calls_of_one_trace_are_turns_if_that_is_wanted(write) -> None:
    spans = call(1, 0), call(2, 3), call(3, 9, traceId="other")
    trace = opened(write, export(*spans), keys="?sessions=trace")
    assert [(each.session, each.turn, each.think_s) for each in trace.requests] == [
        ("s0", 0, 0.0),
        ("s0", 1, 2.0),
        ("s1", 0, 0.0),
    ]
    with pytest.raises(TraceError, match="sessions is 'x'; allowed are conversation, trace"):
        opened(write, export(*spans), keys="?sessions=x")


def test_of_spans_inside_each_other_the_inmost_counts(write) -> None:
    trace = opened(
        write,
        export(
            call(1, 0, 9),  # an agent's, with the sum
            span(2, 0, 9, parent="s1"),
            call(3, 1, parentSpanId="s2"),
            call(4, 2, parentSpanId="s2"),
            call(5, 2, parentSpanId="s4", names=OLD),  # the server's side of it
            call(6, 3, parentSpanId="s6"),  # its own parent
        ),
    )
    assert [each.prompt_tokens for each in trace.requests] == [103, 105, 106]
    assert trace.accounting.dropped["a span around one that has the tokens"] == 2


def test_what_is_no_call_is_dropped(write) -> None:
    trace = opened(
        write,
        export(
            call(1, 0),
            call(2, 0, more={"gen_ai.operation.name": "invoke_agent"}),
            call(3, 0, status={"code": 2}),
            call(4, 0, status={"code": "STATUS_CODE_ERROR", "message": SECRET}),
            call(5, 0, name="prefill Req 0123abcd"),
            call(8, 0, more={"gen_ai.operation.name": "chat"}, status={"code": [2]}, name=[SECRET]),
            call(6, 0, name="decode Req 0123abcd"),
            span(7, 0, 1, attributes={NEW[0]: 5}),
        ),
    )
    assert trace.accounting.dropped == {
        "no call of a model": 1,
        "an error: the call failed": 2,
        "the prefill server's part of a call": 1,
        "no output tokens": 1,
    }


def test_an_operation_that_is_no_text_is_none_of_an_agent(write) -> None:
    attributes = {NEW[0]: 5, NEW[1]: 7, "gen_ai.operation.name": {"invoke_agent": 1}}
    trace = opened(write, {"spans": [flat(1, "0Z", attributes=attributes)]})
    assert len(trace.requests) == 1


def test_thinking_is_known(write) -> None:
    name = "gen_ai.usage.reasoning.output_tokens"
    trace = opened(write, export(call(1, 0, more={name: 4}), call(2, 1, more={name: 99})))
    assert [each.reasoning_tokens for each in trace.requests] == [4, 12]


def flat(number: int, at: str, **changes: object) -> dict:
    attributes = {NEW[0]: 100, NEW[1]: 10}
    times = {"start_time": f"2026-02-25T10:00:0{at}", "end_time": "2026-02-25T10:00:09Z"}
    return {"trace_id": "t", "span_id": f"s{number}", **times, "attributes": attributes, **changes}


def test_flat_spans_and_those_of_a_console_are_taken(write) -> None:
    spans = flat(1, "0.000000Z"), flat(2, "2.500000Z")
    assert opened(write, {"spans": list(spans)}).requests[1].arrival_s == 2.5
    printed = [
        {**each, "context": {"trace_id": "0xab", "span_id": f"0x{place}"}, "parent_id": None}
        for place, each in enumerate(spans)
    ]
    trace = opened(write, *printed, indent=4)
    assert [each.arrival_s for each in trace.requests] == [0.0, 2.5]


def test_texts_are_counted_if_that_is_wanted(write) -> None:
    messages = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "x" * 40}]}])
    texts = {"gen_ai.input.messages": messages, "gen_ai.output.text": "y" * 10}
    document = {"spans": [flat(1, "0Z", attributes=texts), flat(2, "1Z")]}
    trace = opened(write, document, keys="?chars_per_token=4")
    assert [(each.prompt_tokens, each.output_tokens) for each in trace.requests] == [
        (10, 3),
        (100, 10),
    ]
    assert any("The texts of 1 calls are counted by 4 char" in note for note in trace.notes)
    with pytest.raises(TraceError, match="chars_per_token=4 or tokenizer="):
        opened(write, {"spans": [flat(1, "0Z", attributes=texts)]})


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"hello": SECRET}, "object 1: has neither resourceSpans nor spans"),
        ({"resourceSpans": SECRET}, "column resourceSpans: is a text of 12 characters; allowed is"),
        ({"resourceSpans": [SECRET]}, "column resourceSpans: is a text of 12 characters; allowed"),
        ({"spans": []}, "has no data rows"),
        (export(span(1, 0, 1)), "none of its 1 spans has gen_ai.usage.input_tokens and gen_ai"),
        (
            export(call(1, 0, startTimeUnixNano=None)),
            "startTimeUnixNano: is None; allowed is whole",
        ),
        (export(call(1, 0, startTimeUnixNano="-5")), "column startTimeUnixNano: is '-5'; allowed"),
        (export(call(1, 0, startTimeUnixNano=10**30)), "column startTimeUnixNano: is 1000000"),
        (export(call(1, 0, startTimeUnixNano=1e30)), "column startTimeUnixNano: is 1e+30; allowed"),
        (export(call(1, 0, startTimeUnixNano=SECRET)), "startTimeUnixNano: is a text of 12 char"),
        (export(call(1, 5, endTimeUnixNano="1")), "endTimeUnixNano: is earlier than the span's"),
        (export(call(1, 0, spanId=7)), "column spanId: is 7; allowed is a string"),
        (export(call(1, 0, more={NEW[0]: -4})), "column gen_ai.usage.input_tokens: is '-4'"),
        (export(call(1, 0, more={NEW[1]: SECRET})), "output_tokens: is a text of 12 characters"),
        (export(call(1, 0, more={NEW[1]: 2**31})), "is 2147483648; allowed is a whole number from"),
        ({"spans": [flat(1, "0Z", attributes={NEW[0]: [1], NEW[1]: 1})]}, "input_tokens: is [1];"),
    ],
)
def test_what_is_wrong_is_said(write, document, problem) -> None:
    with pytest.raises(TraceError) as caught:
        opened(write, document)
    assert problem in str(caught.value)
    assert SECRET not in str(caught.value)


def test_the_names_are_those_of_sglang() -> None:
    tracing = pytest.importorskip("sglang.srt.observability.trace", exc_type=ImportError)
    names = tracing.SpanAttributes
    assert names.GEN_AI_USAGE_PROMPT_TOKENS in otel.PROMPT
    assert names.GEN_AI_USAGE_COMPLETION_TOKENS in otel.OUTPUT
    assert names.GEN_AI_REQUEST_MAX_TOKENS in otel.LIMIT
