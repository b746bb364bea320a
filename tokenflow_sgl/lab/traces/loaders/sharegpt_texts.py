"""ShareGPT as published: conversations as texts, whose tokens are counted here.

The file is a JSON list of objects with `conversations`, a list of turns of `from` (human, gpt) and
`value`, as in ShareGPT_V3_unfiltered_cleaned_split.json and files like it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from tokenflow_sgl.lab.traces.generators.arrivals import ARRIVALS, Arrivals
from tokenflow_sgl.lab.traces.generators.request_lengths import MAX_TOKENS
from tokenflow_sgl.lab.traces.loaders.conversations import ChatTurn, Conversation, trace_of
from tokenflow_sgl.lab.traces.loaders.documents import Documents
from tokenflow_sgl.lab.traces.loaders.intake import draw_starts, empty_reason
from tokenflow_sgl.lab.traces.loaders.source import Progress
from tokenflow_sgl.lab.traces.loaders.text_lengths import NEEDED, TextMeasure
from tokenflow_sgl.lab.traces.parameters import spell
from tokenflow_sgl.lab.traces.request import Trace, TraceError

ANSWERS = frozenset(("gpt", "assistant", "chatgpt", "bing", "bard", "model"))
"""Who answers; all others' turns are prompt."""
_UNASKED = "no message before the answer"


def load_sharegpt_texts(
    path: Path,
    *,
    measure: TextMeasure | None,
    arrivals: Arrivals,
    seed: int = 0,
    think_s: float = 0.0,
    progress: Progress | None = None,
) -> Trace:
    """Load ShareGPT conversations as closed-loop sessions; each answer is a request.

    A turn's prompt is everything before it in the conversation.

    Args:
        path: JSON file, or .json.gz; it is read one conversation at a time.
        measure: Counts the tokens of a text. None: the file is refused, with what to give.
        arrivals: When conversations start: the file has no times.
        seed: Seed of the arrivals.
        think_s: Seconds before a next turn; the file says nothing about that either.
        progress: Told how far reading is.

    Raises:
        TraceError: The file cannot be read or is malformed, or `measure` is None.
    """
    if not 0 <= think_s < float("inf"):
        raise TraceError(f"think is {think_s!r}; allowed is a number of seconds of at least 0")
    records = Documents(path, progress, kind="sharegpt")
    dropped: Counter[str] = Counter()
    found: list[list[ChatTurn]] = []
    rows = silent = 0
    for row in records.rows():
        turns = records.list(row, "conversations")
        if measure is None:
            records.line = 0
            records.error(f"has texts and no numbers of tokens: {NEEDED}")
        answers, asked = _read(records, turns, measure, think_s, dropped)
        rows += answers
        silent += not answers
        if asked:
            found.append(asked)
    starts = draw_starts(arrivals, seed, len(found)).tolist() if found else []
    conversations = [Conversation(*each) for each in zip(starts, found, strict=True)]
    notes = [
        f"ShareGPT conversations; their texts are counted by {measure.said() if measure else ''}, "
        "without what a chat template adds.",
        f"The file has no times: conversations start by {spell(ARRIVALS, arrivals)}, seed {seed}.",
        f"The file has no think times: the next turn follows {think_s:g} s after an answer.",
    ]
    if silent:
        notes.append(f"{silent} conversations have no answer.")
    return trace_of(records, conversations, rows, dropped, notes)


def _read(
    records: Documents,
    turns: list[Any],
    measure: TextMeasure,
    think_s: float,
    dropped: Counter[str],
) -> tuple[int, list[ChatTurn]]:
    """How many answers a conversation has, and the requests among them."""
    found: list[ChatTurn] = []
    answers, context, asked = 0, 0, False
    for turn in turns:
        if not isinstance(turn, dict):
            records.fail("conversations", turn, "objects with from and value")
        who, what = ("role", "content") if "role" in turn else ("from", "value")
        speaker, tokens = records.text(turn, who), measure.tokens(_text(records, turn, what))
        if context + tokens > MAX_TOKENS:
            records.error(f"has more than {MAX_TOKENS} tokens", "conversations")
        if speaker.lower() in ANSWERS:
            answers += 1
            reason = empty_reason(context, tokens) if asked else _UNASKED
            if reason:
                dropped[reason] += 1
            else:
                found.append(ChatTurn(context, tokens, think_s if found else 0.0))
            asked = False
        else:
            asked = True
        context += tokens
    return answers, found


def _text(records: Documents, turn: dict[str, Any], column: str) -> str:
    """What was said; unlike a name, it may have any letters that JSON can spell."""
    value = records.value(turn, column)
    if not isinstance(value, str):
        records.fail(column, value, "a string")
    return value
