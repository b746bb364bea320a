"""Results of serving benchmarks as a trace: the lengths that were served, and when.

A result file holds one JSON object per run, appended. With SGLang's `bench_serving
--output-details`, or vLLM's `bench serve --save-detailed`, a run has a list entry per request in
`input_lens`, `output_lens` and `errors`. Newer runs of vLLM have `start_times`, too: seconds on a
clock of their own. SGLang's have no send times.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

from tokenflow_sgl.lab.traces.generators.arrivals import ARRIVALS, Arrivals
from tokenflow_sgl.lab.traces.generators.request_lengths import MAX_TOKENS
from tokenflow_sgl.lab.traces.loaders.intake import draw_starts, empty_reason, require_some, stem
from tokenflow_sgl.lab.traces.loaders.source import Progress, Records
from tokenflow_sgl.lab.traces.parameters import spell
from tokenflow_sgl.lab.traces.request import Accounting, Trace, TraceError, TraceRequest

RUN_LINE = 256 * 1024 * 1024
"""Longest run that is read, bytes: details hold every generated text."""


def load_bench(
    path: Path,
    *,
    arrivals: Arrivals | None = None,
    seed: int = 0,
    run: int | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Load the requests of one `bench_serving` run, in the order in which it sent them.

    Args:
        path: The result file.
        arrivals: When requests arrive; None: as the run has it, which must say so.
        seed: Seed of the arrivals.
        run: Which run of the file, from 1; None: its only one.
        progress: Told how far reading is.

    Raises:
        TraceError: The file cannot be read or is malformed, lacks the details or that run, or holds
            several runs and `run` is None.
    """
    # bench_serving writes an unlimited request rate as Infinity.
    records = Records(path, progress, RUN_LINE, constants=True, kind="bench")
    lengths: list[tuple[int, int, bool]] = []
    starts: list[float] | None = None
    mode = ""
    runs = 0
    for row in records.rows():
        runs += 1
        if run is None and runs > 1:
            raise TraceError(f"{path}: holds several runs; run=NUMBER, from 1, names one")
        if run in (None, runs):
            lengths = _lengths(records, row)
            starts = _starts(records, row, len(lengths))
            mode = f"backend {row.get('backend')}, dataset {row.get('dataset_name')}"
    if run is not None and not 1 <= run <= runs:
        raise TraceError(f"{path}: run is {run}; allowed is 1 to {runs}")

    if arrivals is None and starts is None:
        raise TraceError(
            f"{path}: the run has no start_times, so arrivals must be given, as in "
            f"arrivals=poisson&rate=2&seed=0; allowed are {', '.join(ARRIVALS)}"
        )

    dropped: Counter[str] = Counter()
    kept: list[tuple[int, int]] = []
    places: list[int] = []
    for place, (prompt, output, failed) in enumerate(lengths):
        reason = "an error: the request failed" if failed else empty_reason(prompt, output)
        if reason:
            dropped[reason] += 1
        else:
            kept.append((prompt, output))
            places.append(place)
    require_some(records, len(lengths), len(kept), dropped)
    if arrivals is not None:
        times = draw_starts(arrivals, seed, len(kept)).tolist()
        has = "Its start_times were left out" if starts else "The file has no send times"
        when = f"{has}: requests arrive by {spell(ARRIVALS, arrivals)}, seed {seed}."
    else:
        assert starts is not None
        first = min(starts)
        # Requests are listed in the order of the data set; that of sending is nearly the same.
        pairs = sorted(zip((starts[place] - first for place in places), kept, strict=True))
        times, kept = [time for time, _ in pairs], [pair for _, pair in pairs]
        when = "Requests arrive as in the run, by its start_times."
    requests = tuple(TraceRequest(time, *pair) for time, pair in zip(times, kept, strict=True))
    notes = (f"bench_serving run {run or 1} ({mode}).", when)
    accounting = Accounting(len(lengths), len(requests), dict(dropped))
    return Trace(stem(records), requests, accounting, notes)


def _starts(records: Records, row: dict[str, Any], count: int) -> list[float] | None:
    """When each request of a run was sent, in seconds; None: the run does not say."""
    if "start_times" not in row:
        return None
    found = records.list(row, "start_times")
    if len(found) != count:
        records.error(f"holds {len(found)} values, input_lens {count}", "start_times")
    for value in found:
        if type(value) not in (int, float) or not math.isfinite(value):
            records.fail("start_times", value, "finite numbers of seconds")
    return [float(value) for value in found]


def _lengths(records: Records, row: dict[str, Any]) -> list[tuple[int, int, bool]]:
    """Prompt, output and failure of each request of a run."""
    columns = ("input_lens", "output_lens", "errors")
    for column in columns:
        if column not in row:
            records.misfit(
                "the column is missing; the run must be made with --output-details of SGLang's "
                "bench_serving, or --save-detailed of vllm bench serve",
                column,
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
