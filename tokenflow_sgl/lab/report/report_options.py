"""Options of a report: penalties, objectives, weights, resampling."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tokenflow_sgl.choices import TbtRule
from tokenflow_sgl.errors import InputError
from tokenflow_sgl.qos import NOTICEABLE_STALL
from tokenflow_sgl.qos.weights import TAU1, TAU2


class ReportError(InputError):
    """A report cannot be made; the message is a sentence that says why."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a report; they are printed on it.

    Attributes:
        ttft_penalty: lambda of TokenFlow's Eq. 2, tokens per second of TTFT. The paper gives no
            value; 0 leaves the term out.
        stall_penalty: mu of Eq. 2, tokens per second of stall. The paper gives no value either.
        stall_threshold_s: Seconds above which a stall is counted; stalled time is summed whole.
        tau1: Share of the output length up to which a buffered token counts in full (7.1.3).
        tau2: Share of the output length from which on it counts for nothing (7.1.3).
        ttft_slo_s: TTFT objective, seconds, of requests that carry none; None: they have none.
        tbt_slo_s: TBT objective, seconds, of requests that carry none; None: they have none.
        tbt_rule: When a request has met its TBT objective.
        expected_ttft_s: When Andes' ideal reader expects the first token, seconds after the
            arrival, unless the request carries a TTFT objective of its own.
        resamples: Bootstrap samples behind each interval of a comparison.
        confidence: Share of the bootstrap samples within an interval.
        seed: Seed of the bootstrap.
    """

    ttft_penalty: float = 0.0
    stall_penalty: float = 0.0
    stall_threshold_s: float = NOTICEABLE_STALL
    tau1: float = TAU1
    tau2: float = TAU2
    ttft_slo_s: float | None = None
    tbt_slo_s: float | None = None
    tbt_rule: TbtRule = TbtRule.p99
    expected_ttft_s: float = 1.0
    resamples: int = 2000
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("ttft_penalty", "stall_penalty", "stall_threshold_s", "expected_ttft_s"):
            _require(name, getattr(self, name), ">= 0", lambda value: value >= 0)
        for name in ("ttft_slo_s", "tbt_slo_s"):
            value = getattr(self, name)
            if value is not None:
                _require(name, value, "> 0", lambda value: value > 0)
        _require("confidence", self.confidence, "> 0 and < 1", lambda value: 0 < value < 1)
        if not 0 <= self.tau1 < self.tau2 < math.inf:
            raise ReportError(
                f"tau1 and tau2 must be 0 <= tau1 < tau2, got {self.tau1} and {self.tau2}"
            )
        if self.resamples < 100:
            raise ReportError(f"resamples must be >= 100, got {self.resamples}")
        if self.seed < 0:
            raise ReportError(f"seed must be >= 0, got {self.seed}")


def _require(name: str, value: float, allowed: str, good: Callable[[float], bool]) -> None:
    if not (math.isfinite(value) and good(value)):
        raise ReportError(f"{name} must be a finite number {allowed}, got {value}")
