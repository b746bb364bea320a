"""AIPerf's inputs: Mooncake's rows, of which those with a `session_id` are turns of sessions.

Shape: docs/benchmark-modes/trace-replay.md of github.com/ai-dynamo/aiperf. A session's first turn
may have a `timestamp`, its later ones a `delay` after the answer before, both in milliseconds. A
later turn has only its new tokens, which AIPerf sends behind all turns and answers before, unless
the rows' `context_mode` says that each row has its whole prompt.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tokenflow_sgl.lab.traces.generators.arrivals import ARRIVALS, Arrivals
from tokenflow_sgl.lab.traces.generators.request_lengths import MAX_TOKENS
from tokenflow_sgl.lab.traces.loaders.conversations import ChatTurn, Conversation, trace_of
from tokenflow_sgl.lab.traces.loaders.intake import draw_starts, empty_reason
from tokenflow_sgl.lab.traces.loaders.mooncake import BLOCK_TOKENS, PrefixBlocks
from tokenflow_sgl.lab.traces.loaders.source import Progress, Records
from tokenflow_sgl.lab.traces.parameters import spell
from tokenflow_sgl.lab.traces.request import PrefixBlock, Trace, TraceError

_MS = 1000.0
_TEXTS = ("text_input", "messages", "payload")
"""What a row may have instead of `input_length`."""


class ContextMode(StrEnum):
    """What a later turn's prompt has besides the row's own tokens; AIPerf's `context_mode`.

    Attributes:
        deltas_without_responses: All turns and answers before; so without a `context_mode`.
        deltas_with_responses: All turns before, which have the answers among their tokens.
        message_array_with_responses: Nothing: the row has the whole prompt.
    """

    deltas_without_responses = "deltas_without_responses"
    deltas_with_responses = "deltas_with_responses"
    message_array_with_responses = "message_array_with_responses"


@dataclass(slots=True)
class _Session:
    """What is known of a session while its rows are read; context: tokens of its turns so far."""

    mode: ContextMode
    start_ms: float | None
    last_ms: float | None
    single: bool
    prefix: tuple[PrefixBlock, ...] = ()
    turns: list[ChatTurn] = field(default_factory=list)
    context: int = 0


def load_aiperf(
    path: Path,
    *,
    arrivals: Arrivals | None = None,
    seed: int = 0,
    block_tokens: int = BLOCK_TOKENS,
    progress: Progress | None = None,
) -> Trace:
    """Load an input file of AIPerf, as it takes it as a `mooncake_trace`.

    Args:
        path: JSON Lines file, or .jsonl.gz.
        arrivals: When sessions and single requests start; None: as the file has it, which must say
            so.
        seed: Seed of the arrivals.
        block_tokens: Tokens of a prefix block.
        progress: Told how far reading is.

    Raises:
        TraceError: The file cannot be read or is malformed, or has no times and `arrivals` is None.
    """
    records = Records(path, progress, kind="aiperf")
    # AIPerf sends a block that it knows as it was first, whatever its length would be here.
    blocks = PrefixBlocks(records, block_tokens, loose=True)
    sessions: dict[object, _Session] = {}
    dropped: Counter[str] = Counter()
    rows = gaps = 0
    for row in records.rows():
        rows += 1
        if rows == 1 and "chat_id" in row:
            records.misfit("has fields that AIPerf's input does not have")
        key: object = rows
        if row.get("session_id") is not None:
            key = records.text(row, "session_id")
        sent = records.number(row, "timestamp") if row.get("timestamp") is not None else None
        session, mode = sessions.get(key), _mode(records, row)
        if session is None:
            session = sessions[key] = _Session(mode, sent, sent, isinstance(key, int))
        elif mode is not session.mode:
            records.fail(
                "context_mode", row.get("context_mode"), "the same in all rows of a session"
            )
        gaps += _add(records, row, session, sent, blocks, dropped)
    notes = [
        "AIPerf's input; a later turn's prompt has all turns and answers before it, and begins "
        f"with the prefix blocks of the first turn, of {block_tokens} tokens."
    ]
    if any(each.mode is not ContextMode.deltas_without_responses for each in sessions.values()):
        notes.append("Where context_mode says so, rows have the answers before, or whole prompts.")
    if blocks.differing:
        notes.append(
            f"{blocks.differing} prompts have a block that stood for another number of tokens "
            "before: they share what comes before it."
        )
    if gaps:
        notes.append(
            f"{gaps} later turns have a timestamp and no delay: they think for the whole gap "
            "between the two turns, too long by the answer before."
        )
    there = [each for each in sessions.values() if each.turns]
    starts = _starts(path, there, arrivals, seed)
    if arrivals is not None:
        notes.append(f"Sessions start by {spell(ARRIVALS, arrivals)}, seed {seed}.")
    conversations = [
        Conversation(start, each.turns, each.single)
        for start, each in zip(starts, there, strict=True)
    ]
    return trace_of(records, conversations, rows, dropped, notes)


def _add(
    records: Records,
    row: dict[str, Any],
    session: _Session,
    sent: float | None,
    blocks: PrefixBlocks,
    dropped: Counter[str],
) -> bool:
    """Make a turn of a row; whether its think time is a gap between two sendings."""
    texts = [column for column in _TEXTS if row.get(column) is not None]
    if texts and row.get("input_length") is None:
        records.misfit(
            f"the column is missing, and {texts[0]} has text; allowed are rows with input_length: "
            "count the tokens of each text",
            "input_length",
        )
    new, output = records.count(row, "input_length"), records.count(row, "output_length")
    has_delay = row.get("delay") is not None
    delay = records.number(row, "delay") if has_delay else 0.0
    own = blocks.of(records.list(row, "hash_ids"), new) if row.get("hash_ids") is not None else ()
    reason = empty_reason(new, output)
    if reason:
        dropped[reason] += 1
        return False
    gap = False
    if session.turns and not has_delay and sent is not None and session.last_ms is not None:
        if sent < session.last_ms:
            records.error("is earlier than the turn of the session before it", "timestamp")
        delay, gap = sent - session.last_ms, True
    whole = session.mode is ContextMode.message_array_with_responses
    if not session.turns or whole:
        session.prefix = own
    prompt = new if whole else session.context + new
    if prompt + output > MAX_TOKENS:
        records.error(f"makes a session of more than {MAX_TOKENS} tokens", "input_length")
    think_s = delay / _MS if session.turns else 0.0
    session.turns.append(ChatTurn(prompt, output, think_s, session.prefix))
    answered = session.mode is ContextMode.deltas_without_responses
    session.context = prompt + output if answered else prompt
    session.last_ms = sent if sent is not None else session.last_ms
    return gap


def _mode(records: Records, row: dict[str, Any]) -> ContextMode:
    value = row.get("context_mode")
    if value is None:
        return ContextMode.deltas_without_responses
    if value not in list(ContextMode):
        records.fail("context_mode", value, ", ".join(ContextMode))
    return ContextMode(value)


def _starts(
    path: Path, sessions: list[_Session], arrivals: Arrivals | None, seed: int
) -> list[float]:
    """Seconds at which each session starts, from any zero."""
    if arrivals is not None:
        return list(draw_starts(arrivals, seed, len(sessions)).tolist())
    found = [each.start_ms for each in sessions]
    known = [start / _MS for start in found if start is not None]
    if len(known) < len(found):
        raise TraceError(
            f"{path}: {len(found) - len(known)} of {len(found)} sessions and requests have no "
            "timestamp; arrivals must be given, as in arrivals=poisson&rate=2&seed=0; allowed are "
            f"{', '.join(ARRIVALS)}"
        )
    return known
