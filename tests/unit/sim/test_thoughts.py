"""Models that think, where no reader and no newcomer is there to be protected from them."""

from __future__ import annotations

import pytest

from tokenflow_sgl.lab.profiles import load_profile
from tokenflow_sgl.lab.sim import EngineOptions, simulate
from tokenflow_sgl.lab.traces import Accounting, Trace, TraceRequest

KV = 20_000


def thoughts(count: int, apart: float) -> list[TraceRequest]:
    return [
        TraceRequest(apart * number, 200, 2500, rate=20.0, reasoning_tokens=2300)
        for number in range(count)
    ]


@pytest.mark.parametrize(
    "requests",
    [
        thoughts(10, 0.1),
        thoughts(30, 1.0),
        [*thoughts(10, 0.1), TraceRequest(5.0, 12_000, 100, rate=20.0)],
    ],
    ids=["few", "more than fit", "a long prompt beside"],
)
def test_thoughts_end_no_later_than_under_stock(requests) -> None:
    """Held back in empty memory they would only make the batch smaller."""
    trace = Trace("thoughts", tuple(requests), Accounting(len(requests), len(requests)))
    profile = load_profile("rtx4090", "llama3-8b")
    options = EngineOptions(max_total_tokens=KV, host_tokens=16 * KV, chunked_prefill_size=2048)
    ends = {
        policy: simulate(trace, profile, options, policy=policy).run.info.duration_s
        for policy in ("fcfs", "tokenflow")
    }
    assert ends["tokenflow"] <= 1.02 * ends["fcfs"]
