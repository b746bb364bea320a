"""Reports of inference-perf: the requests that it sent, when, and how long they were.

`per_request_lifecycle_metrics.json` of github.com/kubernetes-sigs/inference-perf, which it writes
with `report.request_lifecycle.per_request: true`: a list with an object per request, in the order
in which they ended. Times are seconds on a clock of their own.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from tokenflow_sgl.lab.traces.loaders.conversations import ChatTurn, Conversation, trace_of
from tokenflow_sgl.lab.traces.loaders.documents import Documents
from tokenflow_sgl.lab.traces.loaders.intake import empty_reason
from tokenflow_sgl.lab.traces.loaders.source import Progress
from tokenflow_sgl.lab.traces.request import Trace

_MEDIA = ("image", "video", "audio")
_FAILED = "an error: the request failed"
_UNKNOWN = "no information on the request"


def load_inference_perf(path: Path, *, progress: Progress | None = None) -> Trace:
    """Load the requests of a run, each at the time at which it was sent.

    Args:
        path: The report, or .json.gz.
        progress: Told how far reading is.

    Raises:
        TraceError: The file cannot be read or is malformed.
    """
    # Python's json writes it, and a response may hold any number.
    records = Documents(path, progress, constants=True, kind="inference-perf")
    found: list[Conversation] = []
    dropped: Counter[str] = Counter()
    rows = media = 0
    for row in records.rows():
        rows += 1
        for column in ("start_time", "info", "error"):
            records.value(row, column)
        sent = records.number(row, "start_time")
        info = _object(records, row, "info") if row["info"] is not None else None
        if row["error"] is not None or info is None:
            dropped[_FAILED if row["error"] is not None else _UNKNOWN] += 1
            continue
        prompt, has_media = _prompt(records, info)
        output = _output(records, info)
        media += has_media
        reason = empty_reason(prompt, output)
        if reason:
            dropped[reason] += 1
        else:
            found.append(Conversation(sent, [ChatTurn(prompt, output)], single=True))
    notes = ["inference-perf's report; requests arrive as they were sent."]
    if media:
        notes.append(f"{media} requests have images, videos or audio, which are not counted.")
    return trace_of(records, found, rows, dropped, notes)


def _object(records: Documents, row: dict[str, Any], column: str) -> dict[str, Any]:
    value = row[column]
    if not isinstance(value, dict):
        records.fail(column, value, "an object")
    return value


def _prompt(records: Documents, info: dict[str, Any]) -> tuple[int, bool]:
    """Tokens of the text of a prompt, and whether it has more than text."""
    metrics = info.get("request_metrics")
    if not isinstance(metrics, dict) or not isinstance(metrics.get("text"), dict):
        return records.count(info, "input_tokens"), False  # of older releases
    return (
        records.count(metrics["text"], "input_tokens"),
        any(metrics.get(kind) is not None for kind in _MEDIA),
    )


def _output(records: Documents, info: dict[str, Any]) -> int:
    """Tokens of an answer: those that it counted, or that the server did where it counted none."""
    metrics = info.get("response_metrics")
    if not isinstance(metrics, dict):
        return records.count(info, "output_tokens") if metrics is None else 0
    counted = records.count(metrics, "output_tokens")
    usage = metrics.get("server_usage")
    if not counted and isinstance(usage, dict) and usage.get("completion_tokens") is not None:
        return records.count(usage, "completion_tokens")
    return counted
