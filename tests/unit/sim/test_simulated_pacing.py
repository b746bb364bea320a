"""Pacing in the simulated engine."""

from __future__ import annotations

import pytest

from tokenflow_sgl.lab.report import figures
from tokenflow_sgl.lab.sim import simulate
from tokenflow_sgl.policy import WorkingSetConfig


# No plan with overlap knows the tokens of the step under way: streams pause and go on a step late.
@pytest.mark.parametrize(("overlap", "share"), [(False, 0.9), (True, 0.88)])
def test_tokens_come_as_they_are_read(trace, device, options, overlap, share) -> None:
    # A step takes 10 ms; readers of 10 tokens/s could have all of it ten times as fast.
    rows = trace(*[(0.5 * number, 50, 100, 10.0) for number in range(12)])
    roomy = options(max_total_tokens=100_000, host_tokens=100_000, overlap=overlap)

    def run(*, pace: bool):
        done = simulate(rows, device, roomy, config=WorkingSetConfig(pace=pace), known_lengths=True)
        return done, figures(done.run)

    fast, at_once = run(pace=False)
    slow, paced = run(pace=True)
    assert fast.preempted == 0
    assert slow.preempted == slow.resumed > 0
    assert slow.recomputed == slow.resumed  # a token each: nothing has left the device
    assert slow.loaded == 0
    # Weighted by what lies unread; the answers take ten seconds to read.
    served = paced.throughput.effective * paced.throughput.makespan
    assert served > share * rows.accounting.emitted * 100
    assert at_once.throughput.effective * at_once.throughput.makespan < 0.4 * served
    assert paced.readers.stall_mean < 0.05
    assert paced.latency.ttft.p99 < at_once.latency.ttft.p99 + 0.02
