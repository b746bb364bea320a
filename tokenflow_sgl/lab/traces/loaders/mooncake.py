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

MOST_BLOCK_TOKENS = 1 << 20
BLOCK_TOKENS = 512
"""Tokens that one hash id stands for; the last of a prompt may stand for fewer."""


def load_mooncake(
    path: Path,
    *,
    spread: bool = True,
    seed: int = 0,
    sort: bool = False,
    block_tokens: int = BLOCK_TOKENS,
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
        block_tokens: Tokens of a prefix block.
        progress: Told how far reading is.

    Raises:
        TraceError: The file cannot be read or is malformed, or a block id stands for different
            numbers of tokens.
    """
    records = Records(path, progress, kind="mooncake")
    intake = Intake(records, "timestamp", sort=sort)
    blocks = PrefixBlocks(records, block_tokens)
    times: list[float] = []
    without = 0
    for row in records.rows():
        if records.line == 1 and ("chat_id" in row or "session_id" in row):
            records.misfit("has fields that a Mooncake trace does not have")
        time = records.number(row, "timestamp")
        prompt = records.count(row, "input_length")
        output = records.count(row, "output_length")
        prefix: tuple[PrefixBlock, ...] = ()
        if row.get("hash_ids") is not None:
            prefix = blocks.of(records.list(row, "hash_ids"), prompt)
        else:
            without += 1
        times.append(time)
        intake.add(time, prompt, output, prefix=prefix)
    notes = [
        f"Mooncake; prefix blocks of {block_tokens} tokens, the last of a prompt may be shorter."
    ]
    if without:
        notes.append(f"{without} rows have no hash_ids: their prompts share nothing.")
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


class PrefixBlocks:
    """The prefix blocks of a file, of which each stands for the same tokens wherever it is.

    Args:
        records: The file, for errors.
        tokens: Of a whole block; the last one of a prompt may have fewer.
        loose: A block that stood for other tokens before ends what a prompt shares, instead of
            being refused; `differing` counts them.
    """

    def __init__(self, records: Records, tokens: int, *, loose: bool = False) -> None:
        self._records, self._tokens = records, tokens
        self._loose = loose
        self.differing = 0
        self._known: dict[int, PrefixBlock] = {}

    def of(self, ids: list[object], prompt: int) -> tuple[PrefixBlock, ...]:
        """The blocks of a prompt of so many tokens.

        Raises:
            TraceError: They are too few or too many, one is no number, or stood for other tokens.
        """
        records, size = self._records, self._tokens
        expected = math.ceil(prompt / size)
        if len(ids) != expected:
            records.error(
                f"holds {len(ids)} ids; a prompt of {prompt} tokens has {expected} of {size} "
                "tokens (blocks=TOKENS sets another size)",
                "hash_ids",
            )
        blocks = []
        for position, block_id in enumerate(ids):
            if type(block_id) is not int or block_id < 0:
                records.fail("hash_ids", block_id, "whole numbers of at least 0")
            tokens = min(size, prompt - position * size)
            block = self._known.setdefault(block_id, PrefixBlock(block_id, tokens))
            if block.tokens != tokens:
                if self._loose:
                    self.differing += 1
                    break
                records.error(
                    f"block {block_id} has {tokens} tokens here and {block.tokens} before",
                    "hash_ids",
                )
            blocks.append(block)
        return tuple(blocks)
