"""Mooncake traces: Kimi's requests with the prefix blocks that they share.

Qin et al., "Mooncake", FAST 2025; files at github.com/kvcache-ai/Mooncake (Apache-2.0).
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from tokenflow_sgl.lab.traces.loaders.intake import Intake, stem
from tokenflow_sgl.lab.traces.loaders.source import Progress, Records
from tokenflow_sgl.lab.traces.quantised_times import spread_nearly
from tokenflow_sgl.lab.traces.request import PrefixBlock, Trace

BLOCK_TOKENS = 512
"""Tokens that one hash id stands for; the last of a prompt may stand for fewer."""


def load_mooncake(
    path: Path,
    *,
    spread: bool = True,
    seed: int = 0,
    sort: bool = False,
    progress: Progress | None = None,
) -> Trace:
    """Load a Mooncake trace.

    Args:
        path: JSON Lines file, or .jsonl.gz.
        spread: If the times turn out to be quantised (conversation_trace: to 3 s), spread the
            requests of each step over it; see `quantised_times`. False: leave them as they are,
            which sends a batch at each step.
        seed: Seed of the spreading.
        sort: Sort rows that are out of order instead of refusing them.
        progress: Told how far reading is.

    Raises:
        TraceError: The file cannot be read or is malformed, or a block id stands for different
            numbers of tokens.
    """
    records = Records(path, progress, kind="mooncake")
    intake = Intake(records, "timestamp", sort=sort)
    lengths: dict[int, PrefixBlock] = {}
    times: list[float] = []
    for row in records.rows():
        if records.line == 1 and ("chat_id" in row or "session_id" in row):
            records.misfit("has fields that a Mooncake trace does not have")
        time = records.number(row, "timestamp")
        prompt = records.count(row, "input_length")
        output = records.count(row, "output_length")
        prefix = _prefix(records, records.list(row, "hash_ids"), prompt, lengths)
        times.append(time)
        intake.add(time, prompt, output, prefix=prefix)
    notes = [
        f"Mooncake; prefix blocks of {BLOCK_TOKENS} tokens, the last of a prompt may be shorter."
    ]
    step_ms = quantum(times)
    quantised = step_ms is not None and spread
    if step_ms is not None and not spread:
        notes.append(f"Its times are quantised to {step_ms / 1000:g} s and were left so.")
    trace = intake.trace(stem(records), notes, per_second=1000.0)
    return spread_nearly(trace, step_ms / 1000, seed) if quantised and step_ms else trace


def quantum(times: list[float]) -> float | None:
    """The step to which times are quantised, in whole units, or None if they are not.

    They are if there are many requests per distinct time and nearly all distinct times are equally
    far apart (to 1 %, for the published times are rounded).
    """
    distinct = np.unique(np.array(times))
    if len(distinct) < 3 or len(times) < 2 * len(distinct):
        return None
    gaps = np.diff(distinct)
    counts = np.maximum(np.rint(gaps / np.median(gaps)), 1.0)
    # Over the whole span, so that rounding of single times does not matter.
    step = float(np.rint((distinct[-1] - distinct[0]) / counts.sum()))
    if not step:
        return None
    regular = np.abs(gaps / step - counts) < 0.01
    return step if regular.mean() > 0.95 else None


def _prefix(
    records: Records, ids: list[object], prompt: int, known: dict[int, PrefixBlock]
) -> tuple[PrefixBlock, ...]:
    expected = math.ceil(prompt / BLOCK_TOKENS)
    if len(ids) != expected:
        records.error(
            f"holds {len(ids)} ids; a prompt of {prompt} tokens has {expected}", "hash_ids"
        )
    blocks = []
    for position, block_id in enumerate(ids):
        if type(block_id) is not int or block_id < 0:
            records.fail("hash_ids", block_id, "whole numbers of at least 0")
        tokens = min(BLOCK_TOKENS, prompt - position * BLOCK_TOKENS)
        block = known.get(block_id)
        if block is None:
            block = known[block_id] = PrefixBlock(block_id, tokens)
        elif block.tokens != tokens:
            records.error(
                f"block {block_id} has {tokens} tokens here and {block.tokens} before", "hash_ids"
            )
        blocks.append(block)
    return tuple(blocks)
