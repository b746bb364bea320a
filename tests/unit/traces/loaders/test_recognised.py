"""Files of other formats: named, told what they lack, and not one of their words said."""

from __future__ import annotations

import gzip
import json

import pytest

from tokenflow_sgl.lab.traces import TraceError, open_trace
from tokenflow_sgl.lab.traces.loaders.recognised import recognise
from tokenflow_sgl.lab.traces.spec import FORMATS

SECRET = "Wittgenstein"
"""Stands wherever a file has somebody's words."""
SETTINGS = {
    "sharegpt": "arrivals=poisson&rate=2",
    "bench": "arrivals=poisson&rate=2",
    "agent": "think=gap",
    "servegen": "start=0&duration=600&lengths=/dev/null",
    "openai-batch": "arrivals=burst",
}
MORE = {
    "ShareGPT conversations": "chars_per_token=4",
    "the input of an OpenAI batch": "outputs=limit&chars_per_token=4",
}
"""Keys that a file needs besides those of its format."""


def sharegpt():
    turns = [{"from": "human", "value": f"{SECRET}, one"}, {"from": "gpt", "value": SECRET}]
    return json.dumps([{"id": f"{SECRET}_0", "conversations": turns}])


def guidellm(**changes):
    request = {"prompt": SECRET, "output": SECRET, "prompt_tokens": 5, "output_tokens": 7}
    body = {
        "metadata": {"version": 1, "guidellm_version": "0.3.0"},
        "benchmarks": [{"config": {}, "requests": {"successful": [request]}}],
    }
    return json.dumps(body, **changes)


def bench(**changes):
    run = {
        **{"backend": "vllm", "dataset_name": SECRET, "request_rate": 2.0},
        **{"total_input_tokens": 60, "total_output_tokens": 90},
        **{"input_lens": [10, 20, 30, 40], "output_lens": [20, 30, 40, 0]},
        **{"ttfts": [0.1, 0.2, 0.1, 0.0], "errors": ["", "", "", f"{SECRET} timed out"]},
        **{"start_times": [100.5, 100.0, 101.25, 99.5], "generated_texts": [SECRET] * 4},
    }
    return {key: value for key, value in {**run, **changes}.items() if value is not None}


def rows(*each):
    return "".join(json.dumps(row) + "\n" for row in each)


def report():
    info = {"request_metrics": {"text": {"input_tokens": 5}}, "response_metrics": None}
    request = {"start_time": 1.5, "end_time": 2.5, "request": SECRET, "response": SECRET}
    return json.dumps([{**request, "info": {**info, "output_tokens": 7}, "error": None}], indent=2)


TOKENS = {"gen_ai.usage.input_tokens": 5, "gen_ai.usage.output_tokens": 7}
SPAN = {
    **{"span_id": "a", "trace_id": "b", "name": SECRET, "attributes": TOKENS},
    **{"start_time": "2026-02-25T10:00:00Z", "end_time": "2026-02-25T10:00:01Z"},
}
OTLP = {
    **{"traceId": "b", "spanId": "a", "name": SECRET, "startTimeUnixNano": "5"},
    "endTimeUnixNano": "9",
    "attributes": [{"key": key, "value": {"intValue": str(of)}} for key, of in TOKENS.items()],
}
JAEGER = {"traceID": "b", "spans": [{"traceID": "b", "spanID": "a", "operationName": SECRET}]}
MESSAGES = [{"role": "user", "content": SECRET}]
USAGE = {"prompt_tokens": 5, "completion_tokens": 7}
LENGTHS = {"input_length": 300, "output_length": 40}
FILES = {
    "ShareGPT conversations": sharegpt(),
    "a GuideLLM report": guidellm(),
    "a GuideLLM report, over several lines": guidellm(indent=2),
    "a result of vLLM's benchmark": json.dumps(bench()),
    "a result of bench_serving with its details": json.dumps(bench(start_times=None)),
    "a benchmark's result without its details": json.dumps(bench(input_lens=None, errors=None)),
    "a Bailian trace": rows(
        {"chat_id": 0, "parent_chat_id": -1, "timestamp": 0.0, "type": SECRET, **LENGTHS}
    ),
    "sessions as AIPerf has them": rows({"session_id": SECRET, "timestamp": 0.0, **LENGTHS}),
    "a Mooncake trace": rows({"timestamp": 0, "hash_ids": [1], **LENGTHS}),
    "a Mooncake trace without prefix blocks": rows({"timestamp": 0, **LENGTHS}),
    "OpenTelemetry spans": json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [OTLP]}]}]}),
    "OpenTelemetry spans, flat": json.dumps({"trace_id": "b", "spans": [SPAN]}, indent=2),
    "OpenTelemetry spans, of a console": json.dumps({"context": {"span_id": "0x1"}, **SPAN}),
    "a Jaeger export": json.dumps({"data": [JAEGER]}),
    "a report of inference-perf": report(),
    "the input of an OpenAI batch": rows(
        {"custom_id": SECRET, "body": {"messages": MESSAGES, "max_tokens": 9}}
    ),
    "the output of an OpenAI batch": rows(
        {"custom_id": SECRET, "response": {"status_code": 200, "body": {"usage": USAGE}}}
    ),
    "chat requests": rows({"messages": [{"role": "user", "content": SECRET}]}),
    "an Azure trace": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6,4,5\n",
    "BurstGPT": "Timestamp,Session ID,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    f"5,{SECRET},ChatGPT,472,18,490,Conversation log\n",
    "lengths of ShareGPT": "num_prefill_tokens,num_decode_tokens,num_total_tokens\n4,3,7\n",
    "calls of agents": "instance_id,step,offset_s,created_unix,prompt_tokens,completion_tokens\n"
    f"{SECRET},0,0,9,4,5\n",
    "windows of ServeGen's arrivals": "client,window_start_s,rate_rps,pattern,arg1,arg2\n"
    "1,0,1,Gamma,1,1\n",
    "a client of ServeGen as published": "0,1.33,8.59,Weibull,0.37,0.39\n600,0,0,,0,0\n",
    "a client of ServeGen as published, lengths": '{"0": {"input_tokens": "{224: 0.25}"}}',
}


@pytest.mark.parametrize("packed", [False, True], ids=("plain", "packed"))
@pytest.mark.parametrize("name", FILES)
def test_a_format_is_recognised_by_its_names(tmp_path, name, packed) -> None:
    path = tmp_path / ("file.gz" if packed else "file")
    data = FILES[name].encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    found = recognise(path)
    assert found is not None
    assert found.name == name.partition(",")[0]
    assert found.kind in ("", *FORMATS)


@pytest.mark.parametrize("text", ["", "[", "{}", "hello,world\n1,2\n", "\x00\xff", '["a"]'])
def test_what_is_not_known_is_not_named(tmp_path, text) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    assert recognise(path) is None
    assert recognise(tmp_path / "missing") is None


def opened(path, kind, more=""):
    settings = "&".join(filter(None, (SETTINGS.get(kind), more)))
    return open_trace(f"{kind}:{path}?{settings}" if settings else f"{kind}:{path}")


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", FILES)
def test_a_file_in_the_wrong_place_is_named_and_its_words_are_not_said(
    tmp_path, name, kind
) -> None:
    path = tmp_path / "file"
    path.write_text(FILES[name])
    known = recognise(path)
    if known.kind == kind and name != "a result of bench_serving with its details":
        if kind != "servegen":  # whose lengths are a file of their own
            assert opened(path, kind, MORE.get(name, "")).requests
        return
    if kind == "bench" and known.kind == "bench":
        assert opened(path, kind).requests
        return
    if kind == "aiperf" and known.kind == "mooncake":  # which AIPerf takes as they are
        assert opened(path, kind).requests
        return
    with pytest.raises(TraceError) as caught:
        opened(path, kind)
    message = str(caught.value)
    assert SECRET not in message
    assert f"it seems to be {known.name}: {known.advice}" in message


@pytest.mark.parametrize("name", FILES)
def test_a_path_without_its_format_is_told_which_it_is(tmp_path, name) -> None:
    path = tmp_path / "file.json"
    path.write_text(FILES[name])
    with pytest.raises(TraceError) as caught:
        open_trace(str(path))
    assert SECRET not in str(caught.value)
    assert f"it seems to be {recognise(path).name}: " in str(caught.value)


def test_valid_json_over_several_lines_is_not_called_invalid(tmp_path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(bench(), indent=2))
    with pytest.raises(TraceError) as caught:
        open_trace(f"bench:{path}")
    assert "is not JSON" not in str(caught.value)
    assert "begins JSON that does not end in this line; allowed is one object a line" in str(
        caught.value
    )


BROKEN = {
    "a native name": ("native", {"name": [SECRET]}),
    "a native column": ("native", {SECRET: 1}),
    "a native reason": (
        "native",
        {"accounting": {"rows": 1, "emitted": 1, "dropped": {SECRET: -1}}},
    ),
    "a native sum": ("native", {"accounting": {"rows": 1, "emitted": 1, "dropped": {SECRET: 2}}}),
    "a native note": ("native", {"notes": [{SECRET: 1}]}),
}
HEADER = {
    **{"format": "tokenflow-trace", "version": 1, "name": "x", "requests": 1, "updates": 0},
    **{"accounting": {"rows": 1, "emitted": 1, "dropped": {}}, "notes": []},
}
REQUEST = {"arrival_s": 0.0, "prompt_tokens": 3, "output_tokens": 3}
CONTENTS = [
    *(rows({**HEADER, **changes}, REQUEST) for _, changes in BROKEN.values()),
    rows(HEADER, {**REQUEST, "arrival_s": SECRET}),
    rows(HEADER, {**REQUEST, "session": SECRET, "turn": 5}),
    rows(HEADER, {**REQUEST, "prefix": [[SECRET, 1]]}),
    rows(HEADER, {**REQUEST, "prompt_tokens": {SECRET: SECRET}}),
    rows(HEADER, {**REQUEST, SECRET: 1}),
    rows(HEADER, SECRET),
    f"{SECRET} is no JSON",
]


@pytest.mark.parametrize("text", CONTENTS, ids=range(len(CONTENTS)))
def test_no_error_of_the_native_format_has_words_of_the_file(tmp_path, text) -> None:
    path = tmp_path / "day.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        open_trace(str(path))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("azure", f"TIMESTAMP,ContextTokens,GeneratedTokens\n{SECRET},1,2\n"),
        ("azure", f"TIMESTAMP,ContextTokens,GeneratedTokens,{SECRET}\n1,2\n"),
        ("azure", f"{SECRET},ContextTokens\n1,2\n"),
        (
            "burstgpt",
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
            f"1,a,{SECRET},2,3,API log\n",
        ),
        ("sharegpt", f"num_prefill_tokens,num_decode_tokens,num_total_tokens\n1,{SECRET},2\n"),
        (
            "agent",
            "instance_id,step,offset_s,created_unix,prompt_tokens,completion_tokens\n"
            f"{SECRET},0,0,0,1,1\nb,0,0,0,1,1\n{SECRET},0,0,0,1,1\n",
        ),
        ("mooncake", rows({"timestamp": SECRET, "hash_ids": [1], **LENGTHS})),
        ("mooncake", rows({"timestamp": 0, "hash_ids": [SECRET], **LENGTHS})),
        ("mooncake", rows({"timestamp": 0, SECRET: [1], "input_length": 300})),
        ("bench", json.dumps(bench(errors=["", "", "", {SECRET: 1}]))),
        ("bench", json.dumps(bench(input_lens=SECRET))),
        ("bench", json.dumps(bench(start_times=[1, 2, 3, SECRET]))),
        ("servegen", f"client,window_start_s,rate_rps,pattern,arg1,arg2\n1,0,1,{SECRET},1,1\n"),
    ],
)
def test_no_error_of_a_file_has_its_words(tmp_path, kind, text) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        opened(path, kind)
    assert SECRET not in str(caught.value)


def test_a_misspelt_column_is_said_with_what_is_meant(tmp_path) -> None:
    path = tmp_path / "day.jsonl"
    path.write_text(rows(HEADER, {**REQUEST, "prioritee": 1}))
    with pytest.raises(
        TraceError, match=r"column prioritee \(is priority meant\?\): the column is unknown"
    ):
        open_trace(str(path))
