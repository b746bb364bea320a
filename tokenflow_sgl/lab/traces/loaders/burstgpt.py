"""BurstGPT: requests to GPT-3.5 and GPT-4 services of a university over months.

Wang et al., "BurstGPT", arXiv:2401.17644; files at github.com/HPMLL/BurstGPT (CC-BY-4.0).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tokenflow_sgl.lab.traces.loaders.conversations import ChatTurn, Conversation, trace_of
from tokenflow_sgl.lab.traces.loaders.intake import Intake, empty_reason, stem
from tokenflow_sgl.lab.traces.loaders.source import Progress, Table
from tokenflow_sgl.lab.traces.request import Trace

COLUMNS = (
    "Timestamp",
    "Model",
    "Request tokens",
    "Response tokens",
    "Total tokens",
    "Log Type",
)
SESSIONS = ("Session ID", "Elapsed time")
"""Columns of the releases that say which requests are of one session, and how long each took."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row that is a request; time and elapsed in seconds, session: empty: it is of none."""

    time: float
    prompt: int
    output: int
    session: str
    elapsed: float


def load_burstgpt(
    path: Path,
    *,
    model: str | None = None,
    log_type: str | None = None,
    sort: bool = False,
    progress: Progress | None = None,
) -> Trace:
    """Load a BurstGPT file, whichever release; further columns of later releases are ignored.

    Where it has a Session ID, the requests of one session are its turns: each is sent as long after
    the answer before it as in the file.

    Args:
        path: CSV file, or .csv.gz.
        model: Keep only this model, as in `ChatGPT`; None: all.
        log_type: Keep only this log type, as in `Conversation log`; None: all.
        sort: Sort rows that are out of order instead of refusing them.
        progress: Told how far reading is.

    Returns:
        The trace. Failed requests (no response tokens), rows whose total is not the sum and those
        filtered out are counted as dropped.

    Raises:
        TraceError: The file cannot be read or is malformed.
    """
    table = Table(path, COLUMNS, progress, optional=SESSIONS, kind="burstgpt")
    intake = Intake(table, "Timestamp", sort=sort)
    whole = True
    zero = None
    kept: list[_Row] = []
    dropped: Counter[str] = Counter()
    for time_text, its_model, prompt_text, output_text, total_text, its_log, *own in table.rows():
        time = table.number("Timestamp", time_text)
        prompt = table.count("Request tokens", prompt_text)
        output = table.count("Response tokens", output_text)
        total = table.count("Total tokens", total_text)
        zero = time if zero is None else min(zero, time)
        whole = whole and time.is_integer()
        drop = None
        if model is not None and its_model != model:
            drop = f"model is not {model}"
        elif log_type is not None and its_log != log_type:
            drop = f"log type is not {log_type}"
        elif not output:
            drop = "no response tokens: the request failed"
        elif total != prompt + output:
            drop = "total tokens differ from request plus response tokens"
        intake.add(time, prompt, output, drop=drop)
        if reason := drop or empty_reason(prompt, output):
            dropped[reason] += 1
        else:
            session, took = own[0].strip(), own[1].strip()
            elapsed = table.number("Elapsed time", took) if session and took else 0.0
            kept.append(_Row(time, prompt, output, session, elapsed))
    notes = [f"BurstGPT; zero is Timestamp {zero} s."]
    if whole:
        notes.append(
            "Its times are whole seconds: requests of one second arrive together "
            "(spread=1 spreads them)."
        )
    if not any(row.session for row in kept):
        return intake.trace(stem(table), notes)
    notes.append(
        "Requests of one Session ID are turns of a session, each sent as long after the answer "
        "before it as in the file, where Elapsed time says when that ended."
    )
    rows = len(kept) + sum(dropped.values())
    return trace_of(table, _conversations(kept), rows, dropped, notes)


def _conversations(rows: list[_Row]) -> list[Conversation]:
    """The requests as sessions, and those of none alone."""
    found: list[Conversation] = []
    there: dict[str, tuple[Conversation, float]] = {}  # and when the last answer ended
    for row in sorted(rows, key=lambda row: row.time):
        conversation, ended = there.get(row.session, (None, 0.0))
        if conversation is None:
            conversation = Conversation(row.time, [], single=not row.session)
            found.append(conversation)
        think_s = max(row.time - ended, 0.0) if conversation.turns else 0.0
        conversation.turns.append(ChatTurn(row.prompt, row.output, think_s))
        if row.session:
            there[row.session] = conversation, row.time + row.elapsed
    return found
