"""A few figures of a run, for the end of a replay; `tokenflow report` has all of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokenflow_sgl.lab.runs.store import Run
from tokenflow_sgl.qos import Summary

_ERRORS_SHOWN = 3
_REASON_LETTERS = 200


def print_summary(run: Run, folder: Path, console: Console) -> None:
    """Print the main figures of a run, whether it is valid, and where it is."""
    for reason in run.info.invalid:  # first, so that invalid figures are not taken for valid ones
        console.print(f"INVALID: {reason}", style="bold red", markup=False, soft_wrap=True)
    if run.info.interrupted:
        console.print("Interrupted: what was measured until then is written.", style="yellow")
    console.print(summary_table(run))
    for note in run.info.target["notes"]:
        console.print(f"Note: {note}", highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"Written to {folder}/. All figures: tokenflow report {folder}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def summary_table(run: Run) -> Table:
    """Requests, TTFT and throughput of a run; its warm-up counts only where a row says so."""
    counted = run.requests.filter(pc.invert(run.requests["warm_up"]))
    sent = counted.filter(pc.is_valid(counted["sent_s"]))
    failed = counted.filter(pc.is_valid(counted["error"]))
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()

    def row(label: str, value: str, unit: str = "") -> None:
        table.add_row(Text(label), value, unit)  # a server's words are no markup

    row("requests", f"{run.requests.num_rows:,}")
    if counted.num_rows < run.requests.num_rows:
        row("of them warm-up, not counted below", f"{run.requests.num_rows - counted.num_rows:,}")
    ttft = Summary.of(_ttft(run, sent["index"].to_numpy(), sent["scheduled_s"].to_numpy()))
    if ttft.count:
        row("TTFT, mean", f"{ttft.mean:.3f}", "s")
        row("TTFT, P50", f"{ttft.p50:.3f}", "s")
        row("TTFT, P99", f"{ttft.p99:.3f}", "s")
    row("tokens, warm-up included", f"{run.tokens.num_rows:,}")
    if run.info.duration_s > 0:
        row(
            "token throughput, likewise",
            f"{run.tokens.num_rows / run.info.duration_s:,.1f}",
            "tokens/s",
        )
    row("duration", f"{run.info.duration_s:,.1f}", "s")
    if run.info.send_lag_p99_s is not None:
        row("send lag, P99", f"{run.info.send_lag_p99_s * 1000:.1f}", "ms")
    row("failures", f"{failed.num_rows:,}")
    reasons = Counter(failed["error"].to_pylist())
    for reason, count in reasons.most_common(_ERRORS_SHOWN):
        row(f"  {count:,} x {' '.join(reason.split())[:_REASON_LETTERS]}", "")
    return table


def _ttft(run: Run, index: np.ndarray, due_s: np.ndarray) -> np.ndarray:
    """TTFT of those requests that got a token, seconds after they were due."""
    owners, first = np.unique(run.tokens["request"].to_numpy(), return_index=True)
    times = run.tokens["time_s"].to_numpy()[first]
    due = dict(zip(index.tolist(), due_s.tolist(), strict=True))
    return np.array(
        [
            time_s - due[owner]
            for owner, time_s in zip(owners.tolist(), times.tolist(), strict=True)
            if owner in due
        ]
    )
