"""ShareGPT as lengths only: conversations without times, ids or text.

The file is the one of the Etalon project (data/processed_traces, Apache-2.0), Llama-2 tokenizer.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tokenflow_sgl.lab.traces.generators.arrivals import ARRIVALS, Arrivals
from tokenflow_sgl.lab.traces.loaders.intake import draw_starts, empty_reason, require_some, stem
from tokenflow_sgl.lab.traces.loaders.source import Progress, Table
from tokenflow_sgl.lab.traces.parameters import spell
from tokenflow_sgl.lab.traces.request import Accounting, Trace, TraceError, TraceRequest

COLUMNS = ("num_prefill_tokens", "num_decode_tokens", "num_total_tokens")


def load_sharegpt(
    path: Path,
    *,
    arrivals: Arrivals,
    seed: int = 0,
    think_s: float = 0.0,
    progress: Progress | None = None,
) -> Trace:
    """Load ShareGPT lengths as closed-loop conversations.

    A row continues the conversation of the row before it if its prompt is longer than that row's
    prompt and answer together. Neighbours can be merged by chance, so turns per conversation are an
    upper bound.

    Args:
        path: CSV file, or .csv.gz.
        arrivals: When conversations start: the file has no times.
        seed: Seed of the arrivals.
        think_s: Seconds before a next turn; the file says nothing about that either.
        progress: Told how far reading is.

    Returns:
        The trace; a later turn has its conversation's start as `arrival_s`.

    Raises:
        TraceError: The file cannot be read or is malformed.
    """
    if not 0 <= think_s < float("inf"):
        raise TraceError(f"think is {think_s!r}; allowed is a number of seconds of at least 0")
    table = Table(path, COLUMNS, progress, kind="sharegpt")
    dropped: Counter[str] = Counter()
    turns, rows = _read_turns(table, dropped)
    require_some(table, rows, len(turns), dropped)
    conversations = turns[-1][0] + 1
    starts = draw_starts(arrivals, seed, conversations).tolist()
    requests = tuple(
        TraceRequest(
            arrival_s=starts[conversation],
            prompt_tokens=prompt,
            output_tokens=output,
            session=f"c{conversation}",
            turn=turn,
            think_s=think_s if turn else 0.0,
        )
        for conversation, turn, prompt, output in turns
    )
    notes = (
        f"ShareGPT lengths; {conversations} conversations were inferred from consecutive rows.",
        f"The file has no times: conversations start by {spell(ARRIVALS, arrivals)}, seed {seed}.",
        f"The file has no think times: the next turn follows {think_s:g} s after an answer.",
    )
    return Trace(stem(table), requests, Accounting(rows, len(requests), dict(dropped)), notes)


def _read_turns(table: Table, dropped: Counter[str]) -> tuple[list[tuple[int, int, int, int]], int]:
    """Conversation, turn, tokens of prompt and of answer, of each request; and how many rows.

    Args:
        table: The file.
        dropped: Counts the rows that are left out, by reason.
    """
    turns: list[tuple[int, int, int, int]] = []
    rows, conversation, turn, before = 0, -1, 0, 0
    opens = True  # the next request opens a conversation
    for prompt_text, output_text, total_text in table.rows():
        prompt = table.count("num_prefill_tokens", prompt_text)
        output = table.count("num_decode_tokens", output_text)
        total = table.count("num_total_tokens", total_text)
        if total != prompt + output:
            table.fail("num_total_tokens", total_text, f"the sum, {prompt + output}")
        rows += 1
        opens = opens or prompt <= before
        before = total
        reason = empty_reason(prompt, output)
        if reason:
            dropped[reason] += 1
            continue
        if opens:
            conversation, turn, opens = conversation + 1, 0, False
        else:
            turn += 1
        turns.append((conversation, turn, prompt, output))
    return turns, rows
