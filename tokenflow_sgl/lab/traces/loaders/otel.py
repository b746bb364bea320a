"""Spans of OpenTelemetry: the calls of a model that servers, clients and agents recorded.

Takes OTLP as JSON (an object with `resourceSpans`, or one a line, as the collector's file exporter
writes), inference-perf's files with `spans`, and what the SDKs' console exporters print. Names of
attributes: those of the semantic conventions for GenAI, old and new, which SGLang and vLLM use, and
OpenInference's.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tokenflow_sgl.lab.traces.loaders.conversations import ChatTurn, Conversation, trace_of
from tokenflow_sgl.lab.traces.loaders.documents import Documents
from tokenflow_sgl.lab.traces.loaders.instants import TICKS, ticks
from tokenflow_sgl.lab.traces.loaders.intake import empty_reason
from tokenflow_sgl.lab.traces.loaders.source import Progress
from tokenflow_sgl.lab.traces.loaders.text_lengths import TextMeasure, tokens_of
from tokenflow_sgl.lab.traces.request import Trace

LARGEST = 256 * 1024 * 1024
"""Characters of one object: an export may be a single one."""
PROMPT = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.prompt_tokens",
    "llm.usage.prompt_tokens",
    "llm.token_count.prompt",
)
"""Attributes with the tokens of a prompt; the first one that is there counts."""
OUTPUT = (
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.usage.completion_tokens",
    "llm.token_count.completion",
)
"""Attributes with the tokens of an answer."""
REASONING = (
    "gen_ai.usage.reasoning.output_tokens",
    "gen_ai.usage.reasoning_tokens",
    "llm.token_count.completion_details.reasoning",
)
"""Attributes with the tokens of an answer that are thinking."""
LIMIT = ("gen_ai.request.max_tokens",)
ASKED = ("gen_ai.input.messages",)
"""Attributes with the messages of a prompt, as JSON."""
ANSWERED = ("gen_ai.output.messages", "gen_ai.output.text")
CONVERSATION = ("gen_ai.conversation.id", "session.id")
_OPERATION = "gen_ai.operation.name"
_NO_CALL = ("create_agent", "invoke_agent", "invoke_workflow", "execute_tool")
_PREFILL = "prefill Req "
"""How SGLang names the span of the prefill server of a pair; the decode server has its own."""

_AROUND = "a span around one that has the tokens"
_FAILED = "an error: the call failed"
_NO_TOKENS = "no numbers of tokens"
_OTHER = "no call of a model"
_HALF = "the prefill server's part of a call"


class SpanSessions(StrEnum):
    """Which calls are turns of one session.

    Attributes:
        conversation: Those with one `gen_ai.conversation.id` or `session.id`.
        trace: Those of one trace.
    """

    conversation = "conversation"
    trace = "trace"


@dataclass(frozen=True, slots=True)
class _CallSpan:
    """A call of a model; start and end in nanoseconds, session: empty: it is of none."""

    key: tuple[str, str]
    start: int
    end: int
    session: str
    turn: ChatTurn


@dataclass(slots=True)
class _Spans:
    """What a file has.

    parents: the parent of each span, by trace and span. measured: calls whose texts were counted.
    """

    calls: list[_CallSpan] = field(default_factory=list)
    parents: dict[tuple[str, str], str] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    measured: int = 0


def load_otel(
    path: Path,
    *,
    sessions: SpanSessions = SpanSessions.conversation,
    measure: TextMeasure | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Load the calls of a model from spans, each at the time at which it began.

    Of spans inside each other that have numbers of tokens, the inmost counts: an agent's span has
    the sum of its calls, and a client's span has the server's inside it. Calls of one conversation
    are turns of a session, each sent as long after the answer before it as in the file.

    Args:
        path: JSON or JSON Lines file, or one that ends in .gz.
        sessions: Which calls are turns of one session.
        measure: Counts the texts of calls that have no numbers of tokens; None: these are dropped.
        progress: Told how far reading is.

    Returns:
        The trace. Its rows are the spans; those that are no call of a model are dropped.

    Raises:
        TraceError: The file cannot be read or is malformed, or no span has numbers of tokens.
    """
    records = Documents(path, progress, LARGEST, kind="otel")
    spans = _Spans()
    for document in records.rows():
        for span in _spans(records, document):
            _add(records, span, spans, sessions, measure)
    if spans.rows and spans.dropped[_NO_TOKENS] == spans.rows:
        records.line = 0
        records.error(
            f"none of its {spans.rows} spans has {PROMPT[0]} and {OUTPUT[0]}; export the spans of "
            "a server with tracing on (SGLang: --enable-trace, vLLM: --otlp-traces-endpoint) or of "
            f"an instrumented client; if they have texts as {ASKED[0]}, chars_per_token=4 or "
            "tokenizer=MODEL/tokenizer.json counts those"
        )
    around = _around(spans)
    spans.dropped[_AROUND] += sum(call.key in around for call in spans.calls)
    calls = [call for call in spans.calls if call.key not in around]
    conversations, early = _conversations(calls)
    notes = ["OpenTelemetry spans; calls begin as in the file."]
    if any(not each.single for each in conversations):
        notes.append(
            f"Calls of one {sessions} are turns of a session, each sent as long after the answer "
            "before it as in the file."
        )
    if spans.measured and measure is not None:
        notes.append(
            f"The texts of {spans.measured} calls are counted by {measure.said()}, without what a "
            "chat template adds."
        )
    if early:
        notes.append(
            f"{early} turns began before the answer before them had ended: they follow at once."
        )
    return trace_of(records, conversations, spans.rows, +spans.dropped, notes)


def _conversations(calls: list[_CallSpan]) -> tuple[list[Conversation], int]:
    """The calls as sessions, and those of none alone; and how many began too early for a turn."""
    zero = min((call.start for call in calls), default=0)
    found: list[Conversation] = []
    there: dict[str, tuple[Conversation, int]] = {}  # and when the last answer ended
    early = 0
    for call in sorted(calls, key=lambda call: call.start):
        conversation, ended = there.get(call.session, (None, 0))
        if conversation is None:
            conversation = Conversation((call.start - zero) / TICKS, [], single=not call.session)
            found.append(conversation)
            think_s = 0.0
        else:
            early += call.start < ended
            think_s = max(call.start - ended, 0) / TICKS
        turn = call.turn
        conversation.turns.append(
            ChatTurn(turn.prompt, turn.output, think_s, (), turn.limit, turn.reasoning)
        )
        if call.session:
            there[call.session] = conversation, max(ended, call.end)
    return found, early


def _around(spans: _Spans) -> set[tuple[str, str]]:
    """Spans that have a call inside them."""
    found: set[tuple[str, str]] = set()
    for call in spans.calls:
        trace, own = call.key
        span = spans.parents.get(call.key, "")
        while span and span != own and (trace, span) not in found:
            found.add((trace, span))
            span = spans.parents.get((trace, span), "")
    return found


def _spans(records: Documents, document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The spans of an object of the file."""
    if (resources := _either(document, "resourceSpans", "resource_spans")) is not None:
        for resource in _objects(records, resources, "resourceSpans"):
            scopes = _either(resource, "scopeSpans", "scope_spans", "instrumentationLibrarySpans")
            for scope in _objects(records, scopes or [], "scopeSpans"):
                yield from _objects(records, scope.get("spans") or [], "spans")
    elif document.get("spans") is not None:
        yield from _objects(records, document["spans"], "spans")
    elif "start_time" in document and "attributes" in document:
        yield document
    else:
        records.misfit("has neither resourceSpans nor spans, of which one is in OTLP's JSON")


def _add(
    records: Documents,
    span: dict[str, Any],
    spans: _Spans,
    sessions: SpanSessions,
    measure: TextMeasure | None,
) -> None:
    """Take a span, or count why it is no call."""
    spans.rows += 1
    context = span.get("context") if isinstance(span.get("context"), dict) else span
    trace = _name(records, context, "traceId", "trace_id")
    own = _name(records, context, "spanId", "span_id")
    # Spans without ids are of no other one; the number keeps them apart.
    key = trace, own or f"#{spans.rows}"
    spans.parents[key] = _name(records, span, "parentSpanId", "parent_span_id", "parent_id")
    attributes = _attributes(records, span)
    prompt, output = (_count(records, attributes, names) for names in (PROMPT, OUTPUT))
    if measure is not None and prompt is None and output is None:
        prompt = _measured(records, attributes, ASKED, measure)
        if prompt is not None:
            output = _measured(records, attributes, ANSWERED, measure)
            spans.measured += 1
    if prompt is None and output is None:
        spans.dropped[_NO_TOKENS] += 1
        return
    start = _time(records, span, "startTimeUnixNano", "start_time_unix_nano", "start_time")
    end = _time(records, span, "endTimeUnixNano", "end_time_unix_nano", "end_time")
    if end < start:
        records.error("is earlier than the span's start", "endTimeUnixNano")
    reason = _why_not(span, attributes) or empty_reason(prompt or 0, output or 0)
    if reason:
        spans.dropped[reason] += 1
        return
    assert prompt and output
    limit, reasoning = (_count(records, attributes, names) for names in (LIMIT, REASONING))
    turn = ChatTurn(
        prompt,
        output,
        limit=None if not limit else max(limit, output),
        reasoning=min(reasoning or 0, output),
    )
    session = trace
    if sessions is SpanSessions.conversation:
        session = next((str(attributes[name]) for name in CONVERSATION if name in attributes), "")
    spans.calls.append(_CallSpan(key, start, end, session, turn))


def _why_not(span: dict[str, Any], attributes: Mapping[str, Any]) -> str | None:
    """Why a span with numbers of tokens is no call of a model that ended well."""
    if attributes.get(_OPERATION) in _NO_CALL:
        return _OTHER
    if isinstance(span.get("name"), str) and span["name"].startswith(_PREFILL):
        return _HALF
    status = span.get("status")
    code = status.get("code", status.get("status_code")) if isinstance(status, dict) else None
    return _FAILED if code in (2, "2", "STATUS_CODE_ERROR", "ERROR") else None


def _attributes(records: Documents, span: dict[str, Any]) -> Mapping[str, Any]:
    """Attributes by their name: OTLP has a list of keys and typed values."""
    there = span.get("attributes") or {}
    if isinstance(there, dict):
        return there
    found = {}
    for pair in _objects(records, there, "attributes"):
        value = pair.get("value")
        if isinstance(pair.get("key"), str) and isinstance(value, dict) and value:
            found[pair["key"]] = next(iter(value.values()))
    return found


def _count(records: Documents, attributes: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """A number of tokens; None: no attribute has it. OTLP spells whole numbers as texts."""
    for name in names:
        value = attributes.get(name)
        if value is not None:
            digits = isinstance(value, str) and value.isascii() and value.isdigit()
            if (digits and len(value) < 20) or (isinstance(value, float) and value.is_integer()):
                value = int(value)
            return records.count({name: value}, name)
    return None


def _measured(
    records: Documents, attributes: Mapping[str, Any], names: tuple[str, ...], measure: TextMeasure
) -> int | None:
    """Tokens of messages; None: there are none. Attributes have them as JSON, or as plain text."""
    value = _either(attributes, *names)
    if isinstance(value, str) and value.startswith(("[", "{", '"')):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    return None if value is None else records.count({names[0]: tokens_of(measure, value)}, names[0])


def _time(records: Documents, span: dict[str, Any], *names: str) -> int:
    """Nanoseconds since 1970."""
    name = next((name for name in names if span.get(name) is not None), names[0])
    value = records.value(span, name)
    if isinstance(value, str) and not value.isdigit():
        return ticks(records, name, value)[0]
    if isinstance(value, str) and value.isascii() and len(value) < 20:
        value = int(value)
    if type(value) is not int or not 0 <= value < 2**63:
        records.fail(name, value, "whole nanoseconds since 1970")
    return value


def _name(records: Documents, span: Any, *names: str) -> str:
    """An id of a span; empty: it has none."""
    value = _either(span, *names)
    return "" if value is None else records.text({names[0]: value}, names[0])


def _either(fields: Mapping[str, Any], *names: str) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _objects(records: Documents, values: Any, column: str) -> Iterator[dict[str, Any]]:
    """The objects of a list."""
    if not isinstance(values, list):
        records.fail(column, values, "a list")
    for each in values:
        if not isinstance(each, dict):
            records.fail(column, each, "a list of objects")
        yield each
