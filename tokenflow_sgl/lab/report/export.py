"""Figures and comparisons as JSON: bench_serving's fields by its names, ours beside them.

A run is one object whose top level has the fields of a result line of `sglang.bench_serving`
(milliseconds); `run` says what it was and `tokenflow` has our own figures (seconds, shares).
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from tokenflow_sgl.lab.report.compare import Against, Comparison
from tokenflow_sgl.lab.report.conclusion import conclusions
from tokenflow_sgl.lab.report.run_figures import Figures
from tokenflow_sgl.qos import Summary


def run_object(figures: Figures) -> dict[str, Any]:
    """One run as an object for JSON; NaN is None."""
    info, latency, readers = figures.info, figures.latency, figures.readers
    found: dict[str, Any] = _finite(
        {
            **dataclasses.asdict(figures.bench),
            "run": {
                **dataclasses.asdict(info),
                "valid": not figures.state,
                "warnings": list(figures.warnings),
            },
            "tokenflow": {
                "options": dataclasses.asdict(figures.options),
                "requests": dataclasses.asdict(figures.requests),
                "ttft_s": _summary(latency.ttft),
                "ttft_from_sending_s": _summary(latency.ttft_sent),
                "ttfvt_s": _summary(latency.ttfvt),
                "tbt_s": _summary(latency.tbt),
                "tpot_s": _summary(latency.tpot),
                "e2e_s": _summary(latency.e2e),
                "e2e_per_token_s": _summary(latency.e2e_per_token),
                "makespan_s": figures.throughput.makespan,
                "token_throughput": figures.throughput.token,
                "effective_throughput": figures.throughput.effective,
                "prompt_throughput": figures.throughput.prompt,
                "completed_request_throughput": figures.throughput.request,
                "qos_eq2": readers.qos,
                "stall_seconds": readers.stall_seconds,
                "stall_count": readers.stall_count,
                "stall_per_request_s": _summary(readers.stall),
                "stalled_share": readers.stalled_share,
                "rebuffer_share": readers.rebuffer_share,
                "andes_qoe": {**_summary(readers.andes_qoe), "p10": readers.andes_qoe_p10},
                "slo": dataclasses.asdict(figures.slo),
            },
        }
    )
    return found


def comparison_object(comparison: Comparison) -> dict[str, Any]:
    """Runs and their comparison as an object for JSON."""
    return {
        "baseline": comparison.baseline.info.name,
        "runs": [run_object(figures) for figures in comparison.runs],
        "comparisons": [
            {**_against(other), "conclusion": _finite(dataclasses.asdict(found))}
            for other, found in zip(comparison.others, conclusions(comparison), strict=True)
        ],
    }


def to_json(value: dict[str, Any]) -> str:
    """Write an object; never a NaN."""
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)


def _against(other: Against) -> dict[str, Any]:
    found: dict[str, Any] = _finite(
        {
            "run": other.figures.info.name,
            "valid": not other.figures.state,
            "paired": other.mismatch is None,
            "mismatch": other.mismatch,
            "figures": {
                change.figure.key: {
                    **{
                        field.name: getattr(change, field.name)
                        for field in dataclasses.fields(change)
                        if field.name not in ("figure", "verdict")
                    },
                    "higher_is_better": change.figure.higher_is_better,
                    "verdict": change.verdict.value,
                }
                for change in other.changes
            },
        }
    )
    return found


def _summary(summary: Summary) -> dict[str, float]:
    return dataclasses.asdict(summary)


def _finite(value: Any) -> Any:
    """Replace what JSON cannot say (NaN, infinity) by None, at any depth."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
