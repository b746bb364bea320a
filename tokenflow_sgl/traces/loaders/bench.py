"""Results of SGLang's `bench_serving --output-details` as a trace: the lengths that were served.

A result file holds one JSON object per run, appended. With `--output-details` a run has a list
entry per request in `input_lens`, `output_lens` and `errors`; it never has send times.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from tokenflow_sgl.traces.generators.arrivals import ARRIVALS, Arrivals
from tokenflow_sgl.traces.generators.request_lengths import MAX_TOKENS
from tokenflow_sgl.traces.loaders.intake import draw_starts, empty_reason, require_some, stem
from tokenflow_sgl.traces.loaders.source import Progress, Records
from tokenflow_sgl.traces.parameters import spell
from tokenflow_sgl.traces.request import Accounting, Trace, TraceError, TraceRequest

RUN_LINE = 256 * 1024 * 1024
"""Longest run that is read, bytes: details hold every generated text."""


def load_bench(
    path: Path,
    *,
    arrivals: Arrivals,
    seed: int = 0,
    run: int | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Load the requests of one `bench_serving` run, in the order in which it sent them.

    Args:
        path: The result file.
        arrivals: When requests arrive: the file does not say.
        seed: Seed of the arrivals.
        run: Which run of the file, from 1; None: its only one.
        progress: Told how far reading is.

    Raises:
        TraceError: The file cannot be read or is malformed, lacks the details or that run, or holds
            several runs and `run` is None.
    """
    # bench_serving writes an unlimited request rate as Infinity.
    records = Records(path, progress, RUN_LINE, constants=True)
    lengths: list[tuple[int, int, bool]] = []
    mode = ""
    runs = 0
    for row in records.rows():
        runs += 1
        if run is None and runs > 1:
            raise TraceError(f"{path}: holds several runs; run=NUMBER, from 1, names one")
        if run in (None, runs):
            lengths = _lengths(records, row)
            mode = f"backend {row.get('backend')}, dataset {row.get('dataset_name')}"
    if run is not None and not 1 <= run <= runs:
        raise TraceError(f"{path}: run is {run}; allowed is 1 to {runs}")

    dropped: Counter[str] = Counter()
    kept = []
    for prompt, output, failed in lengths:
        reason = "an error: the request failed" if failed else empty_reason(prompt, output)
        if reason:
            dropped[reason] += 1
        else:
            kept.append((prompt, output))
    require_some(records, len(lengths), len(kept), dropped)
    times = draw_starts(arrivals, seed, len(kept)).tolist()
    requests = tuple(TraceRequest(time, *pair) for time, pair in zip(times, kept, strict=True))
    notes = (
        f"bench_serving run {run or 1} ({mode}).",
        f"The file has no send times: requests arrive by {spell(ARRIVALS, arrivals)}, seed {seed}.",
    )
    accounting = Accounting(len(lengths), len(requests), dict(dropped))
    return Trace(stem(records), requests, accounting, notes)


def _lengths(records: Records, row: dict[str, Any]) -> list[tuple[int, int, bool]]:
    """Prompt, output and failure of each request of a run."""
    columns = ("input_lens", "output_lens", "errors")
    for column in columns:
        if column not in row:
            records.error(
                "the column is missing; the run must be made with --output-details", column
            )
    prompts, outputs, errors = (records.list(row, column) for column in columns)
    for column, values in (("output_lens", outputs), ("errors", errors)):
        if len(values) != len(prompts):
            records.error(f"holds {len(values)} values, input_lens {len(prompts)}", column)
    for column, values in (("input_lens", prompts), ("output_lens", outputs)):
        for value in values:
            if type(value) is not int or not 0 <= value <= MAX_TOKENS:
                records.fail(column, value, "whole numbers of at least 0")
    for error in errors:
        if not isinstance(error, str | None):
            records.fail("errors", error, "strings")
    return [
        (prompt, output, bool(error))
        for prompt, output, error in zip(prompts, outputs, errors, strict=True)
    ]
