"""What a run does for its trace, in a line: gains, what they cost, and how full memory was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tokenflow_sgl.lab.report.compare import Against, Change, Comparison, Verdict
from tokenflow_sgl.lab.report.held_kv import HeldKv, held_kv, kv_sentence
from tokenflow_sgl.lab.report.run_figures import Figures
from tokenflow_sgl.lab.report.text import number

_HEADLINES = {
    "ttft_mean": "mean TTFT",
    "ttft_p99": "P99 TTFT",
    "stall_seconds": "stalls",
    "stalled_share": "readers stalled",
    "e2e_mean": "mean E2E",
    "tpot_mean": "mean TPOT",
    "token_throughput": "throughput",
    "slo_attainment": "objectives met",
}
"""Figures that the line is about, and their short names."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What a run does for its trace.

    Attributes:
        name: Of the run.
        text: The line, without the name.
        gains: Headline figures that are clearly better than the baseline's.
        costs: Those that are clearly worse.
        host_bytes: Host memory that it takes beyond the baseline's; None: not known.
        kv: The baseline's KV memory.
    """

    name: str
    text: str
    gains: tuple[str, ...]
    costs: tuple[str, ...]
    host_bytes: float | None
    kv: HeldKv


def conclude(baseline: Figures, against: Against) -> Conclusion:
    """Say what a run does, against the baseline."""
    changes = [change for change in against.changes if change.figure.key in _HEADLINES]
    gains = [change for change in changes if change.verdict is Verdict.better]
    costs = [change for change in changes if change.verdict is Verdict.worse]
    kv, own = held_kv(baseline.judged.recording), held_kv(against.figures.judged.recording)
    host = None
    if kv.host_bytes is not None and own.host_bytes is not None:
        host = own.host_bytes - kv.host_bytes
    bad = [figures for figures in (baseline, against.figures) if figures.state]
    if bad:
        text = f"No verdict: {' and '.join(figures.label for figures in bad)}."
    else:
        text = " ".join(
            (
                f"Gains: {_list(gains) or 'none that is clear'}.",
                f"Costs: {_costs(costs, host, own)}.",
                kv_sentence(kv, gained=bool(gains)),
                *(["How much host memory it takes is not recorded."] if host is None else []),
            )
        )
    return Conclusion(
        against.figures.label,
        text,
        tuple(change.figure.key for change in gains),
        tuple(change.figure.key for change in costs),
        host,
        kv,
    )


def conclusions(comparison: Comparison) -> list[Conclusion]:
    """What each run does, against the baseline."""
    return [conclude(comparison.baseline, against) for against in comparison.others]


def _list(changes: Sequence[Change]) -> str:
    return ", ".join(_change(change) for change in changes)


def _change(change: Change) -> str:
    figure = change.figure
    unit = "" if figure.unit == "%" else f" {figure.unit}" if figure.unit else ""
    before, after = figure.show(change.baseline), figure.show(change.value)
    if figure.unit == "%":
        before, after = f"{before} %", f"{after} %"
    return f"{_HEADLINES[figure.key]} {before} to {after}{unit}"


def _costs(costs: Sequence[Change], host: float | None, own: HeldKv) -> str:
    parts = [_change(change) for change in costs]
    if host is not None and host > 0:
        used = own.host_peak_bytes
        most = "" if used is None or math.isnan(used) else f" ({_gigabytes(used)} of it in use)"
        parts.append(f"{_gigabytes(host)} of host memory{most}")
    return ", ".join(parts) or "none that is clear"


def _gigabytes(size: float) -> str:
    return f"{number(size / 1e9)} GB"
