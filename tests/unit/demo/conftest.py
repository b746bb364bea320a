"""Runs as the demo records them, made up."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from tokenflow_sgl.lab.report import Figures, figures
from tokenflow_sgl.lab.runs import REQUEST_SCHEMA, TOKEN_SCHEMA, Run, RunInfo

MakeFigures = Callable[..., Figures]


@pytest.fixture
def make_figures() -> MakeFigures:
    """`make_figures(name, (ttft_s, gap_s), ...)`: streams of 20 tokens, read at 10 tokens/s.

    failed: Index of a request that failed. invalid: Why the run is not valid.
    """

    def make(
        name: str,
        *streams: tuple[float, float],
        failed: int | None = None,
        invalid: tuple[str, ...] = (),
    ) -> Figures:
        rows, owners, times = [], [], []
        for index, (ttft_s, gap_s) in enumerate(streams):
            stamps = [ttft_s + gap_s * number for number in range(20)]
            bad = index == failed
            rows.append(
                {
                    "index": index,
                    "turn": 0,
                    "warm_up": False,
                    "scheduled_s": 0.0,
                    "sent_s": 0.0,
                    "ended_s": stamps[-1],
                    "prompt_tokens": 3,
                    "requested_tokens": 20,
                    "output_tokens": 20,
                    "rate": 10.0,
                    "finish_reason": None if bad else "length",
                    "error": "HTTP 500: no memory" if bad else None,
                }
            )
            owners += [index] * 20
            times += stamps
        info = RunInfo(name, "replay", {}, {}, {}, duration_s=max(times), invalid=invalid)
        tokens = pa.table({"request": owners, "time_s": times}).cast(TOKEN_SCHEMA)
        return figures(Run(info, pa.Table.from_pylist(rows, REQUEST_SCHEMA), tokens))

    return make
