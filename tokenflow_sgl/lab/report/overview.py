"""The short tables that describe one run: label and value as words, for terminal and page alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenflow_sgl.choices import TbtRule
from tokenflow_sgl.lab.report.catalogue import CATALOGUE
from tokenflow_sgl.lab.report.figure_kind import Section
from tokenflow_sgl.lab.report.run_figures import Figures
from tokenflow_sgl.lab.report.text import number, plain
from tokenflow_sgl.qos import Summary

Row = tuple[str, str]

LATENCY_COLUMNS = ("", "unit", "mean", "P50", "P90", "P95", "P99", "P99.9", "max", "count")
"""Heads of `latency_rows`."""

_RULES = {
    TbtRule.p99: "99 % of the request's gaps within it",
    TbtRule.mean: "the request's TPOT within it",
    TbtRule.every: "each of the request's gaps within it",
}


def latency_rows(figures: Figures) -> list[tuple[str, ...]]:
    """One row a latency, with the columns of `LATENCY_COLUMNS`."""
    latency = figures.latency
    return [
        _latency("TTFT, from when it was due", "s", 1, latency.ttft),
        _latency("TTFT, from sending", "s", 1, latency.ttft_sent),
        *(
            [_latency("TTFVT (first visible token), from when it was due", "s", 1, latency.ttfvt)]
            if latency.ttfvt.count
            else []
        ),
        _latency("TBT, per token", "ms", 1000, latency.tbt),
        _latency("TPOT, per request", "ms", 1000, latency.tpot),
        _latency("E2E, from when it was due", "s", 1, latency.e2e),
        _latency("E2E per output token", "ms", 1000, latency.e2e_per_token),
    ]


def section_rows(figures: Figures, section: Section) -> list[Row]:
    """The figures of a section as label and value with unit."""
    rows = [
        (figure.title(figures.options), _with_unit(figure.show(figure.value(figures)), figure.unit))
        for figure in CATALOGUE
        if figure.section is section
    ]
    if section is Section.slo:
        if not figures.slo.requests:
            return [("objectives", "no request carries any, and no option sets one")]
        rows.append(("requests with an objective", f"{figures.slo.requests:,}"))
    return rows


def validity_rows(figures: Figures) -> list[Row]:
    """What was counted, what failed and how late requests were sent."""
    requests, info = figures.requests, figures.info
    rows = [
        ("valid", "yes" if not figures.state else f"NO: {figures.state}"),
        ("requests", f"{requests.counted:,}"),
        ("completed", f"{requests.completed:,}"),
        ("without any token", f"{requests.unserved:,}"),
        ("warm-up, left out", f"{requests.warm_up:,}"),
    ]
    known = _told_lengths(figures)
    if known is not None:
        rows.append(("answer lengths", f"{'known' if known else 'unknown'} to the server"))
    if requests.not_reached:
        rows.append(("due after the end, left out", f"{requests.not_reached:,}"))
    if info.send_lag_p99_s is not None:
        rows.append(("sent late by, P99", f"{number(1000 * info.send_lag_p99_s)} ms"))
    shown = list(requests.failed.items())
    rows += [(f"failed: {plain(reason, 60)}", f"{count:,}") for reason, count in shown[:8]]
    if len(shown) > 8:
        rows.append(("failed: other reasons", f"{sum(count for _, count in shown[8:]):,}"))
    return rows


def lengths_note(members: Sequence[Figures]) -> str | None:
    """What the servers of these runs knew of the answers' lengths; None: no run says it.

    Runs that were recorded before it was an option knew them.
    """
    if all(_told_lengths(figures) is None for figures in members):
        return None
    unaware = [figures.label for figures in members if _told_lengths(figures) is False]
    aware = [figures.label for figures in members if _told_lengths(figures) is not False]
    if not aware:
        return "Servers saw the limits of clients and did not know when an answer would end."
    if not unaware:
        return "Servers knew when each answer would end: its limit was its length."
    return (
        f"Not the same knowledge: {', '.join(aware)} knew when each answer would end, "
        f"{', '.join(unaware)} only saw the limits of clients."
    )


def _told_lengths(figures: Figures) -> bool | None:
    known = figures.info.options.get("known_lengths")
    return known if isinstance(known, bool) else None


def option_rows(figures: Figures) -> list[Row]:
    """The options of the report."""
    options = figures.options
    own = "of its own only"
    ttft, tbt = options.ttft_slo_s, options.tbt_slo_s
    return [
        ("Eq. 2: lambda, mu", f"{options.ttft_penalty:g}, {options.stall_penalty:g} tokens/s"),
        ("stalls are counted from", f"{options.stall_threshold_s:g} s on; stalled time is whole"),
        ("effective throughput: tau1, tau2", f"{options.tau1:.0%}, {options.tau2:.0%}"),
        ("TTFT objective", own if ttft is None else f"{ttft:g} s where it carries none"),
        ("TBT objective", own if tbt is None else f"{tbt:g} s where it carries none"),
        ("TBT objective is met by", _RULES[options.tbt_rule]),
        ("Andes: first token expected", f"{options.expected_ttft_s:g} s or the TTFT objective"),
    ]


def setting_rows(figures: Figures) -> list[Row]:
    """The description of the run, with nested mappings flattened."""
    info = figures.info
    rows = [
        ("source", info.source),
        ("started", info.started_at or "not recorded"),
        ("recording", f"{number(info.duration_s)} s of the trace's clock"),
        ("wall clock per trace second", f"{info.time_scale:g} s"),
    ]
    for group, mapping in (
        ("trace", info.trace),
        ("target", info.target),
        ("options", info.options),
    ):
        rows += _flat(group, mapping)
    return [(plain(label, 80), plain(value, 400)) for label, value in rows]


def _flat(prefix: str, mapping: Mapping[str, Any]) -> list[Row]:
    rows: list[Row] = []
    for key, value in mapping.items():
        label = f"{prefix}: {key}"
        if isinstance(value, Mapping):
            rows += _flat(label, value)
        elif isinstance(value, (list, tuple)):
            rows.append((label, " ".join(str(part) for part in value) or "none"))
        else:
            rows.append((label, str(value)))
    return rows


def _latency(label: str, unit: str, scale: float, summary: Summary) -> tuple[str, ...]:
    values = (
        *(summary.mean, summary.p50, summary.p90, summary.p95),
        *(summary.p99, summary.p999, summary.max),
    )
    return (label, unit, *(number(value * scale) for value in values), f"{summary.count:,}")


def _with_unit(shown: str, unit: str) -> str:
    return shown if not unit or shown == "-" else f"{shown} {unit}"
