"""Bailian's traces: requests to Qwen with the chats that they belong to.

Files at github.com/alibaba-edu/qwen-bailian-usagetraces-anon. Times are seconds, prefix blocks have
16 tokens, and each row has the whole prompt, all turns before it included.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from tokenflow_sgl.lab.traces.loaders.conversations import ChatTurn, Conversation, trace_of
from tokenflow_sgl.lab.traces.loaders.intake import empty_reason
from tokenflow_sgl.lab.traces.loaders.source import Progress, Records
from tokenflow_sgl.lab.traces.request import PrefixBlock, Trace

BLOCK_TOKENS = 16
"""Tokens of a prefix block."""
LOOSE = 1
"""Ids that a prompt may have more than its tokens make."""
_NO_PARENT = -1


def load_bailian(path: Path, *, progress: Progress | None = None) -> Trace:
    """Load a Bailian trace: chats become closed-loop sessions.

    A turn is sent as long after the one before it was sent as in the file, counted from that one's
    answer: too long by the answer, whose end the file does not have. Where several rows have the
    same parent, the first one continues its chat, and each other one begins a session.

    Args:
        path: JSON Lines file, or .jsonl.gz.
        progress: Told how far reading is.

    Raises:
        TraceError: The file cannot be read or is malformed, a chat_id is there twice, or a parent
            comes behind its turn.
    """
    records = Records(path, progress, kind="bailian")
    chats: dict[int, tuple[Conversation, float]] = {}
    wanted: dict[int, int] = {}  # parents that were not there, and who asked for them
    continued: set[int] = set()
    found: list[Conversation] = []
    dropped: Counter[str] = Counter()
    rows = branches = cut_off = 0
    for row in records.rows():
        rows += 1
        chat, parent = records.count(row, "chat_id"), _parent(records, row)
        sent = records.number(row, "timestamp")
        if chat in chats or chat in wanted or chat == parent:
            _refuse(records, chat, parent, wanted)
        prompt, output = records.count(row, "input_length"), records.count(row, "output_length")
        prefix = _prefix(records, row, prompt)
        before = chats.get(parent)
        if before is not None and sent < before[1]:
            records.error("is earlier than the turn that it continues", "timestamp")
        if parent != _NO_PARENT and before is None:
            wanted.setdefault(parent, chat)
            cut_off += 1
        if before is None or parent in continued:
            branches += before is not None
            conversation, think_s = Conversation(sent, []), 0.0
            found.append(conversation)
        else:
            conversation, think_s = before[0], sent - before[1]
            continued.add(parent)
        chats[chat] = conversation, sent
        reason = empty_reason(prompt, output)
        if reason:
            dropped[reason] += 1
            continue
        conversation.turns.append(
            ChatTurn(prompt, output, think_s if conversation.turns else 0.0, prefix)
        )
    notes = [
        f"Bailian; prefix blocks of {BLOCK_TOKENS} tokens, whole ones only.",
        "A later turn thinks for the whole gap between the two turns, too long by the answer "
        "before.",
    ]
    if cut_off:
        notes.append(f"{cut_off} turns continue chats that are not in the file: they begin here.")
    if branches:
        notes.append(f"{branches} turns continue a turn that another one continues: they begin.")
    return trace_of(records, found, rows, dropped, notes)


def _parent(records: Records, row: dict[str, Any]) -> int:
    value = records.value(row, "parent_chat_id")
    return _NO_PARENT if value in (None, _NO_PARENT) else records.count(row, "parent_chat_id")


def _refuse(records: Records, chat: int, parent: int, wanted: dict[int, int]) -> None:
    """Say what is wrong with a row's ids."""
    if chat == parent:
        records.error(f"chat {chat} is its own parent", "parent_chat_id")
    if chat in wanted:
        records.error(
            f"chat {wanted[chat]} continues chat {chat}, which comes behind it", "chat_id"
        )
    records.error(f"chat {chat} is there twice", "chat_id")


def _prefix(records: Records, row: dict[str, Any], prompt: int) -> tuple[PrefixBlock, ...]:
    ids = records.list(row, "hash_ids") if row.get("hash_ids") is not None else []
    expected = -(-prompt // BLOCK_TOKENS)
    if len(ids) > expected + LOOSE:
        records.error(
            f"holds {len(ids)} ids; a prompt of {prompt} tokens has at most {expected + LOOSE} of "
            f"{BLOCK_TOKENS} tokens",
            "hash_ids",
        )
    for each in ids:
        if type(each) is not int or each < 0:
            records.fail("hash_ids", each, "whole numbers of at least 0")
    return tuple(PrefixBlock(each, BLOCK_TOKENS) for each in ids[: prompt // BLOCK_TOKENS])
