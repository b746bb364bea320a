"""Which format a file has, told from its names of columns and fields; never from its contents.

For errors alone: a file that a loader cannot use is named, and what it lacks. Of a file only the
names are said that are in the tables below: others may be somebody's words.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_HEAD = 64 * 1024
"""Bytes that are looked at."""
_BLANK = "\ufeff \t\r\n"
_JSON_BEGINS = ("[", "{")
_FIELD = re.compile(r'"([A-Za-z_]\w{0,40})"\s*:')
_NATIVE = "convert it to the native format (docs/traces.md)"


@dataclass(frozen=True, slots=True)
class Recognised:
    """A format that files of its kind have.

    Attributes:
        kind: What specs call it; empty: there is no loader for it.
        name: What it is, in words.
        names: Columns or fields that every such file has.
        advice: What it lacks, or how it is loaded.
    """

    kind: str
    name: str
    names: frozenset[str]
    advice: str


def _known(kind: str, name: str, names: str, advice: str) -> Recognised:
    return Recognised(kind, name, frozenset(names.split(",")), advice)


_JSON = (
    _known("", "a GuideLLM report", "benchmarks,metadata", f"there is no loader for it: {_NATIVE}"),
    _known(
        "",
        "a GuideLLM report",
        "benchmarks,scheduler_metrics",
        f"there is no loader for it: {_NATIVE}",
    ),
    _known(
        "sharegpt",
        "ShareGPT conversations",
        "conversations,from,value",
        "it has texts and no times: load it as sharegpt:PATH?arrivals=poisson&rate=2&"
        "chars_per_token=4, or with tokenizer=MODEL/tokenizer.json for chars_per_token",
    ),
    _known("otel", "OpenTelemetry spans", "resourceSpans,scopeSpans", "load it as otel:PATH"),
    _known("otel", "OpenTelemetry spans", "resource_spans,scope_spans", "load it as otel:PATH"),
    _known(
        "otel", "OpenTelemetry spans", "spans,span_id,start_time,attributes", "load it as otel:PATH"
    ),
    _known(
        "otel",
        "OpenTelemetry spans",
        "context,span_id,start_time,attributes",
        "load it as otel:PATH",
    ),
    _known(
        "",
        "a Jaeger export",
        "data,traceID,spans,operationName",
        "there is no loader for it: export OTLP as JSON (the collector's file exporter), and load "
        "that as otel:PATH",
    ),
    _known(
        "inference-perf",
        "a report of inference-perf",
        "start_time,end_time,request,response,info",
        "load it as inference-perf:PATH",
    ),
    _known(
        "openai-batch",
        "the output of an OpenAI batch",
        "custom_id,response",
        "load it as openai-batch:PATH?arrivals=poisson&rate=2",
    ),
    _known(
        "openai-batch",
        "the input of an OpenAI batch",
        "custom_id,body",
        "load it as openai-batch:PATH?arrivals=poisson&rate=2&answers=OUTPUT_FILE",
    ),
    _known(
        "bench",
        "a result of vLLM's benchmark",
        "input_lens,output_lens,errors,start_times",
        "load it as bench:PATH, one run a line",
    ),
    _known(
        "bench",
        "a result of bench_serving with its details",
        "input_lens,output_lens,errors",
        "load it as bench:PATH, one run a line",
    ),
    _known(
        "",
        "a benchmark's result without its details",
        "total_input_tokens,total_output_tokens",
        "it has no lengths per request: run SGLang's bench_serving with --output-details, or "
        "vllm bench serve with --save-result --save-detailed",
    ),
    _known(
        "bailian",
        "a Bailian trace",
        "chat_id,parent_chat_id,input_length,output_length",
        "load it as bailian:PATH",
    ),
    _known(
        "aiperf",
        "sessions as AIPerf has them",
        "session_id,input_length,output_length",
        "load it as aiperf:PATH",
    ),
    _known(
        "mooncake",
        "a Mooncake trace",
        "timestamp,input_length,output_length,hash_ids",
        "load it as mooncake:PATH",
    ),
    _known(
        "mooncake",
        "a Mooncake trace without prefix blocks",
        "timestamp,input_length,output_length",
        "load it as mooncake:PATH",
    ),
    _known(
        "native",
        "a trace in the native format",
        "format,version,accounting,requests",
        "load it by its path alone, which ends in .jsonl or .jsonl.gz",
    ),
    _known(
        "",
        "chat requests",
        "messages,role,content",
        f"it has text and no numbers of tokens: {_NATIVE}",
    ),
)
_TABLES = (
    _known(
        "azure",
        "an Azure trace",
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "load it as azure:PATH",
    ),
    _known(
        "burstgpt",
        "BurstGPT",
        "Timestamp,Model,Request tokens,Response tokens",
        "load it as burstgpt:PATH",
    ),
    _known(
        "sharegpt",
        "lengths of ShareGPT",
        "num_prefill_tokens,num_decode_tokens",
        "load it as sharegpt:PATH?arrivals=poisson&rate=2",
    ),
    _known(
        "agent",
        "calls of agents",
        "instance_id,step,prompt_tokens,completion_tokens",
        "load it as agent:PATH?think=gap",
    ),
    _known(
        "servegen",
        "windows of ServeGen's arrivals",
        "client,window_start_s,rate_rps",
        "load it as servegen:PATH?start=0&duration=600",
    ),
)
_WINDOW = re.compile(r"\d+(\.\d+)?,[\d.eE+-]+,[\d.eE+-]+,(Gamma|Weibull)?,[\d.eE+-]+,[\d.eE+-]+")
_LENGTHS = re.compile(r'\{\s*"\d+"\s*:\s*\{\s*"(input|text)_tokens"')
_SERVEGEN = Recognised(
    "",
    "a client of ServeGen as published",
    frozenset(),
    "load the folder with the files of all clients, as servegen:FOLDER?start=0&duration=600",
)


def recognise(path: Path) -> Recognised | None:
    """The format that a file seems to have; None: none of the known ones."""
    text = _head(path).lstrip(_BLANK)
    if text.startswith(_JSON_BEGINS):
        if _LENGTHS.match(text):
            return _SERVEGEN
        return _first(_JSON, _FIELD.findall(text))
    line = text.partition("\n")[0].strip()
    if _WINDOW.fullmatch(line):
        return _SERVEGEN
    return _first(_TABLES, [name.strip('" ') for name in line.split(",")])


def begins_json(path: Path) -> bool:
    """Whether a file begins as JSON does."""
    return _head(path).lstrip(_BLANK).startswith(_JSON_BEGINS)


def seems(path: Path, wanted: str) -> str:
    """What to say behind an error about a file that should be `wanted`; empty: nothing.

    Args:
        path: The file.
        wanted: The name of the format in a spec.
    """
    found = recognise(path)
    if found is None or (found.kind and found.kind == wanted):
        return ""
    return f"; it seems to be {found.name}: {found.advice}"


def _first(formats: Iterable[Recognised], names: Iterable[str]) -> Recognised | None:
    there = set(names)
    return next((each for each in formats if each.names <= there), None)


def _head(path: Path) -> str:
    try:
        with path.open("rb") as raw:
            if path.suffix == ".gz":
                with gzip.open(raw) as unpacked:
                    data = unpacked.read(_HEAD)
            else:
                data = raw.read(_HEAD)
    except (OSError, EOFError, zlib.error):
        return ""
    return data.decode("utf-8", errors="replace")
