"""Our own format: JSON Lines, one header, one line per request, one per change of priority.

It holds everything that a `Trace` does and gives back the equal trace. docs/traces.md has the
table of fields.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenflow_sgl.lab.traces.loaders.replacing import replacing
from tokenflow_sgl.lab.traces.loaders.said import name_of
from tokenflow_sgl.lab.traces.loaders.source import Progress, Records
from tokenflow_sgl.lab.traces.request import (
    Accounting,
    PrefixBlock,
    PriorityUpdate,
    Trace,
    TraceError,
    TraceRequest,
)

FORMAT = "tokenflow-trace"
VERSION = 1

_HEADER = ("format", "version", "name", "requests", "updates", "accounting", "notes")
_OPTIONAL = ("rate", "ttft_slo_s", "tbt_slo_s", "deadline_s")
_REQUEST = (
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "rate",
    "session",
    "turn",
    "think_s",
    "prefix",
    "ttft_slo_s",
    "tbt_slo_s",
    "deadline_s",
    "priority",
    "limit_tokens",
    "reasoning_tokens",
    "qos_class",
    "tenant",
)
_UPDATE = ("time_s", "index", "priority")
_STATED = (
    *("rate", "session", "ttft_slo_s", "tbt_slo_s", "deadline_s", "priority", "limit_tokens"),
    *("qos_class", "tenant"),
)
_PRIORITIES = 2**31  # exclusive bound of a priority's size


def write_native(path: Path, trace: Trace) -> None:
    """Write a trace, compressed if the file ends in .gz; an existing file is replaced when done.

    Raises:
        OSError: The file cannot be written.
    """
    rows = (json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n" for row in _rows(trace))
    with replacing(path) as raw:
        if path.suffix == ".gz":
            # Without name and time: the same trace makes the same file.
            with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
                packed.writelines(row.encode() for row in rows)
        else:
            raw.writelines(row.encode() for row in rows)


def load_native(path: Path, *, sort: bool = False, progress: Progress | None = None) -> Trace:
    """Load a trace that `write_native` wrote, or another program in its format.

    Args:
        path: JSON Lines file, or .jsonl.gz.
        sort: Sort requests and changes of priority by time instead of refusing them out of order.
        progress: Told how far reading is.

    Raises:
        TraceError: The file cannot be read, is malformed or incomplete, or has another version.
    """
    records = Records(path, progress, kind="native")
    rows = records.rows()
    header = next(rows, None)
    if header is None:
        records.error("has no header")
    if header.get("format") != FORMAT:
        records.misfit(f"is no header with {FORMAT!r}", "format")
    if header.get("version") != VERSION:
        records.fail("version", header.get("version"), f"{VERSION}")
    _only(records, header, _HEADER)
    accounting = _accounting(records, header)
    notes = records.list(header, "notes")
    for note in notes:
        if not isinstance(note, str):
            records.fail("notes", note, "strings")
    name = records.text(header, "name")
    wanted = records.count(header, "requests"), records.count(header, "updates")

    if accounting.emitted != wanted[0]:
        records.fail("accounting", accounting.emitted, f"emitted equal to requests, {wanted[0]}")

    requests: list[TraceRequest] = []
    updates: list[PriorityUpdate] = []
    blocks: dict[int, PrefixBlock] = {}
    for row in rows:
        if len(requests) < wanted[0]:
            request = _request(records, row, blocks)
            if not sort and requests and request.arrival_s < requests[-1].arrival_s:
                records.error("is earlier than the request before it (sort=yes sorts)", "arrival_s")
            requests.append(request)
        else:
            update = _update(records, row, wanted[0])
            if not sort and updates and update.time_s < updates[-1].time_s:
                records.error("is earlier than the change before it (sort=yes sorts)", "time_s")
            updates.append(update)
    if (len(requests), len(updates)) != wanted:
        raise TraceError(
            f"{path}: holds {len(requests)} requests and {len(updates)} changes of priority; the "
            f"header says {wanted[0]} and {wanted[1]}"
        )
    if sort:
        requests, updates = _sorted(requests, updates)
    _check_turns(path, requests)
    return Trace(name, tuple(requests), accounting, tuple(notes), tuple(updates))


def _rows(trace: Trace) -> Iterator[dict[str, Any]]:
    accounting = trace.accounting
    yield {
        "format": FORMAT,
        "version": VERSION,
        "name": trace.name,
        "requests": len(trace.requests),
        "updates": len(trace.priority_updates),
        "accounting": {
            "rows": accounting.rows,
            "emitted": accounting.emitted,
            "dropped": dict(accounting.dropped),
        },
        "notes": list(trace.notes),
    }
    for request in trace.requests:
        row: dict[str, Any] = {
            "arrival_s": request.arrival_s,
            "prompt_tokens": request.prompt_tokens,
            "output_tokens": request.output_tokens,
        }
        for key in _STATED:
            value = getattr(request, key)
            if value is not None:
                row[key] = value
        if request.qos_class is not None:
            row.pop("rate", None)  # it is the class's
        if request.turn:
            row["turn"] = request.turn
        if request.think_s:
            row["think_s"] = request.think_s
        if request.reasoning_tokens:
            row["reasoning_tokens"] = request.reasoning_tokens
        if request.prefix:
            row["prefix"] = [[block.id, block.tokens] for block in request.prefix]
        yield row
    for update in trace.priority_updates:
        yield {"time_s": update.time_s, "index": update.index, "priority": update.priority}


def _only(records: Records, row: dict[str, Any], known: tuple[str, ...]) -> None:
    """Refuse unknown columns: a misspelt optional one would be lost silently."""
    for column in row:
        if column not in known:
            name = name_of(column, (*_HEADER, *_REQUEST, *_UPDATE))
            records.error(f"the column is unknown; allowed are {', '.join(known)}", name)


def _accounting(records: Records, header: dict[str, Any]) -> Accounting:
    fields = records.value(header, "accounting")
    if not isinstance(fields, dict) or set(fields) != {"rows", "emitted", "dropped"}:
        records.fail("accounting", fields, "an object of rows, emitted and dropped")
    dropped = fields["dropped"]
    if not isinstance(dropped, dict):
        records.fail("accounting", dropped, "an object of counts by reason as dropped")
    if not all(type(count) is int and count >= 0 for count in dropped.values()):
        records.error("has counts in dropped that are no whole numbers of at least 0", "accounting")
    reasons = {str(reason): int(count) for reason, count in dropped.items()}
    try:
        return Accounting(records.count(fields, "rows"), records.count(fields, "emitted"), reasons)
    except ValueError as error:
        if isinstance(error, TraceError):
            raise
        total = sum(reasons.values())
        records.error(
            f"has {fields['rows']} rows, but {fields['emitted']} emitted and {total} dropped",
            "accounting",
        )


def _request(records: Records, row: dict[str, Any], blocks: dict[int, PrefixBlock]) -> TraceRequest:
    _only(records, row, _REQUEST)
    optional: dict[str, Any] = {}
    for column in _OPTIONAL:
        if column in row:
            optional[column] = records.number(row, column)
            if not optional[column]:
                records.fail(column, row[column], "a number above 0")
    if "qos_class" in row:
        if "rate" in row:
            records.error("excludes rate, which is the class's", "qos_class")
        optional["qos_class"] = records.text(row, "qos_class")
    for column in ("session", "tenant"):
        if column in row:
            optional[column] = records.text(row, column)
    for column in ("turn", "think_s"):
        if column in row:
            if "session" not in row:
                records.error("has a meaning only with session", column)
            read = records.count if column == "turn" else records.number
            optional[column] = read(row, column)
    if "priority" in row:
        optional["priority"] = _priority(records, row)
    prompt = records.count(row, "prompt_tokens", low=1)
    output = records.count(row, "output_tokens", low=1)
    if "prefix" in row:
        optional["prefix"] = _prefix(records, row, prompt, blocks)
    if "limit_tokens" in row:
        optional["limit_tokens"] = limit = records.count(row, "limit_tokens", low=1)
        if limit < output:
            records.fail("limit_tokens", limit, f"at least output_tokens, which is {output}")
    if "reasoning_tokens" in row:
        optional["reasoning_tokens"] = reasoning = records.count(row, "reasoning_tokens")
        if reasoning > output:
            records.fail("reasoning_tokens", reasoning, f"at most output_tokens, which is {output}")
    return TraceRequest(records.number(row, "arrival_s"), prompt, output, **optional)


def _prefix(
    records: Records, row: dict[str, Any], prompt: int, blocks: dict[int, PrefixBlock]
) -> tuple[PrefixBlock, ...]:
    prefix = []
    for pair in records.list(row, "prefix"):
        if (
            not isinstance(pair, list)
            or [type(item) for item in pair] != [int, int]
            or not (-(2**63) <= pair[0] < 2**63 and pair[1] >= 1)
        ):
            records.fail("prefix", pair, "a list of [id, tokens] with tokens of at least 1")
        block = blocks.setdefault(pair[0], PrefixBlock(*pair))
        if block.tokens != pair[1]:
            records.error(
                f"block {pair[0]} has {pair[1]} tokens here and {block.tokens} before", "prefix"
            )
        prefix.append(block)
    total = sum(block.tokens for block in prefix)
    if total > prompt:
        records.error(f"has {total} tokens, more than the prompt's {prompt}", "prefix")
    return tuple(prefix)


def _priority(records: Records, row: dict[str, Any]) -> int:
    value = records.value(row, "priority")
    if type(value) is not int or not -_PRIORITIES < value < _PRIORITIES:
        records.fail("priority", value, "a whole number of less than 2^31 in size")
    return value


def _update(records: Records, row: dict[str, Any], requests: int) -> PriorityUpdate:
    _only(records, row, _UPDATE)
    index = records.count(row, "index")
    if index >= requests:
        records.fail("index", index, f"the position of a request, 0 to {requests - 1}")
    return PriorityUpdate(records.number(row, "time_s"), index, _priority(records, row))


def _sorted(
    requests: list[TraceRequest], updates: list[PriorityUpdate]
) -> tuple[list[TraceRequest], list[PriorityUpdate]]:
    order = sorted(range(len(requests)), key=lambda index: requests[index].arrival_s)
    place = {old: new for new, old in enumerate(order)}
    moved = [
        PriorityUpdate(update.time_s, place[update.index], update.priority) for update in updates
    ]
    return [requests[old] for old in order], sorted(moved, key=lambda update: update.time_s)


def _check_turns(path: Path, requests: list[TraceRequest]) -> None:
    """Turns of a session count 0, 1, 2, ... in the order of the requests."""
    turns: Counter[str] = Counter()
    for index, request in enumerate(requests):
        if request.session is not None:
            if request.turn != turns[request.session]:
                raise TraceError(
                    f"{path}, column turn: request {index} is turn {request.turn} of its session, "
                    f"where turn {turns[request.session]} is next"
                )
            turns[request.session] += 1
