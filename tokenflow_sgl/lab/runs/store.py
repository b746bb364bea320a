"""A run on disk: one folder that every report reads, whether it was measured or simulated.

    RUN/run.json          what was run, on what, and whether it counts (`RunInfo`)
    RUN/requests.parquet  one row per request (`REQUEST_SCHEMA`)
    RUN/tokens.parquet    one row per token that arrived (`TOKEN_SCHEMA`)

All times are seconds on the trace's clock, whose zero is the start of the run. Where an emulated
device stretched time, they are already converted; `RunInfo.time_scale` says how.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tokenflow_sgl.errors import InputError

INFO = "run.json"
FORMAT = 1
"""Version of the format; a reader refuses others."""

REQUEST_SCHEMA = pa.schema(
    [
        pa.field("index", pa.int32(), nullable=False),  # position in the trace
        pa.field("session", pa.string()),
        pa.field("turn", pa.int32(), nullable=False),
        pa.field("warm_up", pa.bool_(), nullable=False),  # left out of every figure
        pa.field("scheduled_s", pa.float64()),  # when it was due; null: never
        pa.field("sent_s", pa.float64()),  # when it was really sent; null: never
        pa.field("ended_s", pa.float64()),  # end of its stream or its failure; null: cut off
        pa.field("prompt_tokens", pa.int32(), nullable=False),
        pa.field("requested_tokens", pa.int32(), nullable=False),  # answer length asked for
        pa.field("output_tokens", pa.int32(), nullable=False),  # tokens that arrived
        pa.field("reasoning_tokens", pa.int32()),  # the first of them, not for the reader; null: 0
        pa.field("rate", pa.float64(), nullable=False),  # tokens/s that its reader consumes
        pa.field("ttft_slo_s", pa.float64()),
        pa.field("tbt_slo_s", pa.float64()),
        pa.field("priority", pa.int32()),
        pa.field("finish_reason", pa.string()),  # length, stop, abort; null: broke off
        pa.field("error", pa.string()),  # sentence; null: none
        pa.field("qos_class", pa.string()),  # that the request named; null: none
    ]
)

TOKEN_SCHEMA = pa.schema(
    [
        pa.field("request", pa.int32(), nullable=False),  # `index` of the request
        pa.field("time_s", pa.float64(), nullable=False),  # arrival at the client
    ]
)
"""Sorted by request, then by time; tokens that came in one chunk have equal times."""


class RunError(InputError):
    """A run cannot be read, or its tables contradict each other; the message says where and why."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a run was of: trace, target and options, and whether its figures can be trusted.

    Attributes:
        name: Label in tables and legends.
        source: What produced it: `replay` or `simulate`.
        trace: Name of the trace, its accounting and notes.
        target: What answered: URL, model, server arguments, emulated device; whatever is known.
        options: The options of the run, seeds included.
        duration_s: Length of the recording: every request had ended, or it was stopped.
        time_scale: Wall-clock seconds per second of the trace's clock.
        interrupted: Stopped by the user before its end.
        invalid: Reasons why its figures must not be trusted, in sentences; empty: valid.
        send_lag_p99_s: How late requests were sent, 99th percentile, seconds of the wall clock.
        started_at: Wall-clock start, ISO 8601 with zone.
        format: Version of the format.
    """

    name: str
    source: str
    trace: Mapping[str, Any]
    target: Mapping[str, Any]
    options: Mapping[str, Any]
    duration_s: float
    time_scale: float = 1.0
    interrupted: bool = False
    invalid: tuple[str, ...] = ()
    send_lag_p99_s: float | None = None
    started_at: str | None = None
    format: int = field(default=FORMAT)


@dataclass(frozen=True, slots=True)
class Run:
    """A run in memory: its info and its two tables."""

    info: RunInfo
    requests: pa.Table
    tokens: pa.Table


def write_run(folder: Path, run: Run) -> None:
    """Write a run; the folder is made, files of an earlier run in it are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(run.requests.cast(REQUEST_SCHEMA), folder / "requests.parquet")
    pq.write_table(run.tokens.cast(TOKEN_SCHEMA), folder / "tokens.parquet")
    text = json.dumps(dataclasses.asdict(run.info), indent=2, allow_nan=False)
    (folder / INFO).write_text(text + "\n", encoding="utf-8")


def runs_in(folder: Path) -> list[Path]:
    """The run that a folder is, or those in it, by name, as `simulate` writes several at once.

    Raises:
        RunError: It is neither.
    """
    if not folder.is_dir():
        raise RunError(f"{folder} is {'no folder' if folder.exists() else 'not there'}")
    if (folder / INFO).exists():
        return [folder]
    inside = sorted(each.parent for each in folder.glob(f"*/{INFO}"))
    if not inside:
        raise RunError(
            f"{folder} has no run: no {INFO} in it or in a folder below it; `tokenflow replay` and "
            "`tokenflow simulate` write runs"
        )
    return inside


def read_run(folder: Path) -> Run:
    """Read a run from its folder.

    Raises:
        RunError: A file is missing, is not what it should be, or has another format version.
    """
    try:
        fields = json.loads((folder / INFO).read_text(encoding="utf-8"))
        if fields.get("format") != FORMAT:
            found = fields.get("format")
            said = found if type(found) is int else f"of the type {type(found).__name__}"
            raise RunError(f"{folder}: format {said}, this reads {FORMAT}")
        invalid = (*fields["invalid"], *_miscounted(fields["target"].get("notes", ())))
        info = RunInfo(**{**fields, "invalid": invalid})
        requests = _known(pq.read_table(folder / "requests.parquet")).cast(REQUEST_SCHEMA)
        tokens = pq.read_table(folder / "tokens.parquet").cast(TOKEN_SCHEMA)
    except RunError:
        raise
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
    ) as error:
        raise RunError(f"{folder} is not a complete run: {_reason(error)}") from error
    return Run(info, requests, tokens)


_CHUNKS_AS_TOKENS = "did not say how many tokens a chunk brings"
"""In notes of replays that counted every chunk as one token and did not know better at the end."""
_REPORTED = re.compile(r"reported (\d+) tokens; (\d+) were counted")


def _miscounted(notes: Sequence[str]) -> list[str]:
    """Why the counts of a run that an earlier version recorded must not be trusted."""
    reasons = []
    for note in notes:
        reported = _REPORTED.search(note)
        if _CHUNKS_AS_TOKENS in note and (reported is None or reported[1] != reported[2]):
            told = f"; the server reported {reported[1]}, not {reported[2]}" if reported else ""
            reasons.append(
                "Every chunk of an answer was counted as one token, though it may have several"
                f"{told}: rates, times between tokens and stalls are wrong. Next: replay again."
            )
    return reasons


def _reason(error: Exception) -> str:
    """What is wrong with a run, without what its files say: that may be somebody's words."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, json.JSONDecodeError):
        return f"{INFO} is not JSON: {error.msg}, line {error.lineno}"
    if isinstance(error, pa.ArrowException):
        return "requests.parquet or tokens.parquet is not the table of a run"
    return f"{INFO} does not have the fields of a run ({type(error).__name__})"


def _known(requests: pa.Table) -> pa.Table:
    """With the columns that runs lacked before reasoning and classes were told apart."""
    for name in ("reasoning_tokens", "qos_class"):
        if name not in requests.column_names:
            place, column = REQUEST_SCHEMA.get_field_index(name), REQUEST_SCHEMA.field(name)
            missing = pa.nulls(len(requests), column.type)
            requests = requests.add_column(place, column, missing)
    return requests
