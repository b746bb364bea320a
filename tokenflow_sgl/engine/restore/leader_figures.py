"""What only the leader of the ranks measures, and all of them decide restorations by."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tokenflow_sgl.costs import attention_work


@dataclass(frozen=True, slots=True)
class LeaderFigures:
    """The leader's figures of one pass, by which all ranks decide.

    now: seconds. rate: tokens per second of the link to the storage; NaN: unknown. step_end: when
    the step that runs will have ended. prefill: coefficients of `StepCosts`; None: unknown.
    shortest: seconds of a step at least, in which all weights are read; 0.0 while unknown.
    """

    now: float = 0.0
    rate: float = math.nan
    step_end: float = 0.0
    prefill: tuple[float, float, float] | None = None
    shortest: float = 0.0

    def compute(self, prefix: int, tokens: int, chunk: int) -> float:
        """Seconds of computing `tokens` behind `prefix` in chunks; 0.0 while unknown."""
        if self.prefill is None or not tokens:
            return 0.0
        constant, per_token, per_work = self.prefill
        # The attention of all chunks together is that of one.
        work = attention_work(float(tokens), float(prefix))
        seconds = constant * math.ceil(tokens / chunk) + per_token * tokens + per_work * work
        # While all prefills seen were long and alike, nothing tells how short ones can be.
        last = tokens % chunk or chunk
        before = attention_work(float(last), float(prefix + tokens - last))
        return seconds + max(self.shortest - (constant + per_token * last + per_work * before), 0.0)
