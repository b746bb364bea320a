"""The figures that are shown, compared and listed: name, unit, which way is better, where found.

One list for the terminal, the page, the Markdown table and the comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tokenflow_sgl.lab.report.figure_kind import Figure, Section
from tokenflow_sgl.lab.report.run_figures import Figures
from tokenflow_sgl.lab.report.sample import Sample, divide
from tokenflow_sgl.lab.runs.recording import FloatArray
from tokenflow_sgl.qos import Summary

_PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p999": 99.9}
_WORDS = {"mean": "mean", "p50": "P50", "p90": "P90", "p95": "P95", "p99": "P99", "p999": "P99.9"}


def _summary(
    name: str,
    label: str,
    unit: tuple[str, float],
    summary: Callable[[Figures], Summary],
    parts: tuple[str, ...],
) -> Iterator[Figure]:
    """Mean and percentiles of a latency."""

    def value(part: str) -> Callable[[Figures], float]:
        return lambda figures: float(getattr(summary(figures), part))

    def resampled(part: str) -> Callable[[Sample], FloatArray]:
        if name == "tbt":
            if part == "mean":
                return lambda sample: sample.share("gap_seconds", "gaps")
            return lambda sample: sample.gap_percentile(_PERCENTILES[part])
        if part == "mean":
            return lambda sample: sample.mean(name)
        return lambda sample: sample.percentile(name, _PERCENTILES[part])

    for part in parts:
        yield Figure(
            f"{name}_{part}",
            f"{label}, {_WORDS[part]}",
            *unit,
            Section.latency,
            False,
            value(part),
            resampled(part),
        )


_SECONDS, _MILLISECONDS, _PERCENT = ("s", 1.0), ("ms", 1000.0), ("%", 100.0)
_ALL = ("mean", "p50", "p90", "p95", "p99", "p999")
_FEW = ("mean", "p50", "p99")


def _throughput(key: str, label: str, unit: str, column: str) -> Figure:
    return Figure(
        f"{key}_throughput",
        label,
        unit,
        1.0,
        Section.throughput,
        True,
        lambda figures: float(getattr(figures.throughput, key)),
        lambda sample: sample.rate(column),
        _BY_MAKESPAN,
    )


def _eq2(sample: Sample) -> FloatArray:
    lost = sample.options.ttft_penalty * sample.sum("awaited")
    lost = lost + sample.options.stall_penalty * sample.sum("stall")
    return divide(sample.sum("weighted") - lost, sample.makespan)


def _rebuffer(sample: Sample) -> FloatArray:
    stalled = sample.sum("stall")
    return divide(stalled, stalled + sample.sum("reading"))


_BY_MAKESPAN = 0.01
"""Resolution of what is divided by T. T is when the *last* request ended: a bootstrap over requests
knows little about that, and its intervals are too narrow."""

_NO_STALL = 0.001
"""Seconds: as far as a client's stamps are exact, see docs/replay.md."""
_NO_SHARE = 1e-4
"""The same of a share."""

CATALOGUE: tuple[Figure, ...] = (
    *_summary("ttft", "TTFT", _SECONDS, lambda f: f.latency.ttft, _ALL),
    *_summary("ttfvt", "TTFVT (first visible token)", _SECONDS, lambda f: f.latency.ttfvt, _FEW),
    *_summary("tbt", "TBT", _MILLISECONDS, lambda f: f.latency.tbt, _ALL),
    *_summary("tpot", "TPOT", _MILLISECONDS, lambda f: f.latency.tpot, _FEW),
    *_summary("e2e", "E2E", _SECONDS, lambda f: f.latency.e2e, _FEW),
    *_summary(
        "e2e_per_token",
        "E2E per output token",
        _MILLISECONDS,
        lambda f: f.latency.e2e_per_token,
        ("mean", "p90"),
    ),
    _throughput("token", "token throughput", "tokens/s", "delivered"),
    _throughput("effective", "effective throughput", "tokens/s", "effective"),
    _throughput("request", "completed requests", "requests/s", "completed"),
    Figure(
        "makespan",
        "makespan T",
        *_SECONDS,
        Section.throughput,
        False,
        lambda f: f.throughput.makespan,
        lambda sample: sample.makespan,
        _BY_MAKESPAN,
    ),
    Figure(
        "qos",
        "QoS (Eq. 2)",
        "tokens/s",
        1.0,
        Section.reader,
        True,
        lambda f: f.readers.qos,
        _eq2,
        _BY_MAKESPAN,
    ),
    Figure(
        "stall_seconds",
        "stalled time, all readers",
        *_SECONDS,
        Section.reader,
        False,
        lambda f: f.readers.stall_seconds,
        lambda sample: sample.sum("stall"),
        least=_NO_STALL,
    ),
    Figure(
        "stall_p99",
        "stalled time per request, P99",
        *_SECONDS,
        Section.reader,
        False,
        lambda f: f.readers.stall.p99,
        lambda sample: sample.percentile("stall", 99.0),
        least=_NO_STALL,
    ),
    Figure(
        "stall_count",
        "stalls > {threshold:g} s, number",
        "",
        1.0,
        Section.reader,
        False,
        lambda f: float(f.readers.stall_count),
        lambda sample: sample.sum("stall_count"),
        whole=True,
    ),
    Figure(
        "stalled_share",
        "readers with a stall > {threshold:g} s",
        *_PERCENT,
        Section.reader,
        False,
        lambda f: f.readers.stalled_share,
        lambda sample: sample.mean("stalled"),
    ),
    Figure(
        "rebuffer_share",
        "rebuffering share",
        *_PERCENT,
        Section.reader,
        False,
        lambda f: f.readers.rebuffer_share,
        _rebuffer,
        least=_NO_SHARE,
    ),
    Figure(
        "andes_qoe_mean",
        "Andes QoE, mean",
        "",
        1.0,
        Section.reader,
        True,
        lambda f: f.readers.andes_qoe.mean,
        lambda sample: sample.mean("qoe"),
    ),
    Figure(
        "andes_qoe_p10",
        "Andes QoE, P10",
        "",
        1.0,
        Section.reader,
        True,
        lambda f: f.readers.andes_qoe_p10,
        lambda sample: sample.percentile("qoe", 10.0),
    ),
    Figure(
        "goodput",
        "goodput",
        "requests/s",
        1.0,
        Section.slo,
        True,
        lambda f: f.slo.goodput,
        lambda sample: sample.rate("good"),
        _BY_MAKESPAN,
    ),
    Figure(
        "slo_attainment",
        "all objectives met",
        *_PERCENT,
        Section.slo,
        True,
        lambda f: f.slo.attainment,
        lambda sample: sample.share("good_slo", "has_slo"),
    ),
    Figure(
        "slo_ttft",
        "TTFT objective met",
        *_PERCENT,
        Section.slo,
        True,
        lambda f: f.slo.ttft_attainment,
        lambda sample: sample.share("met_ttft", "has_ttft_slo"),
    ),
    Figure(
        "slo_tbt",
        "TBT objective met",
        *_PERCENT,
        Section.slo,
        True,
        lambda f: f.slo.tbt_attainment,
        lambda sample: sample.share("met_tbt", "has_tbt_slo"),
    ),
    Figure(
        "slo_tokens",
        "gaps within TBT objective",
        *_PERCENT,
        Section.slo,
        True,
        lambda f: f.slo.token_attainment,
        lambda sample: sample.share("gaps_met", "gaps_slo"),
    ),
)
"""Every figure with a better and a worse, in the order of the tables."""

BY_KEY = {figure.key: figure for figure in CATALOGUE}
