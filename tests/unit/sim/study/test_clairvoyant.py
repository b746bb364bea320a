"""The no-stall schedule, by hand; and that it is no worse than schedules in its order."""

from __future__ import annotations

import pytest

from tokenflow_sgl.lab.report import figures
from tokenflow_sgl.lab.sim import simulate
from tokenflow_sgl.lab.sim.study.clairvoyant import clairvoyant


def test_alone_a_reader_waits_for_the_prefill(trace, device, options) -> None:
    found = clairvoyant(trace((5.0, 100, 20)), device, options())
    assert found.mean_ttft_s == found.p99_ttft_s == pytest.approx(0.1)


def test_with_room_for_all_they_wait_for_prefills_only(trace, device, options) -> None:
    found = clairvoyant(trace(*[(0.0, 100, 20)] * 3), device, options(max_total_tokens=100_000))
    assert found.mean_ttft_s == pytest.approx(0.2)
    assert found.p99_ttft_s == pytest.approx(0.3, rel=0.02)


def test_a_stream_without_the_promise_of_a_full_buffer_starts_later(trace, device, options) -> None:
    # 1,000 tokens in 0.01 s: a reader of 10 tokens/s at 600 to 700 tokens of context takes 6 to 7 %
    # of the engine. Of thirty some have to wait until others end.
    rows = trace(*[(0.0, 600, 100)] * 30)
    found = clairvoyant(rows, device, options())
    done = figures(simulate(rows, device, options(host_tokens=50_000), policy="tokenflow").run)
    assert found.p99_ttft_s > 18.0 + 1.0  # the prefills alone take 18 s
    assert done.latency.ttft.mean + done.readers.stall_mean > found.mean_ttft_s


def test_slower_readers_let_more_of_them_start(trace, device, options) -> None:
    fast = clairvoyant(trace(*[(0.0, 100, 100, 40.0)] * 20), device, options())
    slow = clairvoyant(trace(*[(0.0, 100, 100, 5.0)] * 20), device, options())
    assert slow.mean_ttft_s < fast.mean_ttft_s
