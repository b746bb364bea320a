"""Against sglang/benchmark/serving.py 0.5.23, worked by hand and in its own words."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from tokenflow_sgl.lab.report import figures


@pytest.fixture
def bench(synthetic):
    """Sent at 0, 1 and 2. The first gets chunks of 1, 2 and 2 tokens at 0.5, 0.9, 1.3 and ends at
    1.5; the second one chunk of 2 at 2; the third fails at 4.
    """
    row = synthetic.request_row
    times = [[0.5, 0.9, 0.9, 1.3, 1.3], [2.0, 2.0], [3.0]]
    rows = [
        row(0, times[0], ended_s=1.5, prompt_tokens=10),
        row(1, times[1], scheduled_s=0.8, sent_s=1.0, prompt_tokens=20),
        row(2, times[2], scheduled_s=2.0, ended_s=4.0, prompt_tokens=40, error="boom"),
    ]
    return figures(synthetic.run_of(rows, times)).bench


def test_counts_and_throughputs(bench):
    assert (bench.duration, bench.completed) == (4.0, 2)
    assert (bench.total_input_tokens, bench.total_output_tokens) == (30, 7)
    assert bench.request_throughput == pytest.approx(2 / 4)
    assert bench.input_throughput == pytest.approx(30 / 4)
    assert bench.output_throughput == pytest.approx(7 / 4)
    assert bench.total_throughput == pytest.approx(37 / 4)


def test_latencies(bench):
    # TTFT 500 and 1000 ms; E2E to the end of the stream 1500 and 1000 ms.
    assert (bench.mean_ttft_ms, bench.median_ttft_ms) == pytest.approx((750, 750))
    assert bench.std_ttft_ms == pytest.approx(250)
    assert bench.p99_ttft_ms == pytest.approx(995)
    assert (bench.mean_e2e_latency_ms, bench.p90_e2e_latency_ms) == pytest.approx((1250, 1450))
    assert bench.concurrency == pytest.approx(2.5 / 4)
    # TPOT (1.5 - 0.5) / 4 and (1 - 1) / 1.
    assert bench.mean_tpot_ms == pytest.approx(125)
    # ITL: gaps of 0.4 s divided by chunks of 2, four times 200 ms; none within a first chunk.
    assert (bench.mean_itl_ms, bench.max_itl_ms, bench.std_itl_ms) == pytest.approx((200, 200, 0))


def test_peaks(bench):
    # Its token times are 0.5, 0.7, 0.9, 1.1, 1.3 and, of the one chunk, 2.0: second 0 has three.
    assert bench.max_output_tokens_per_s == 3
    # Seconds 0 to 1 and 1 to 2: both are under way in second 1.
    assert bench.max_concurrent_requests == 2


def test_nothing_completed_is_nan_not_zero(one_request):
    bench = figures(one_request([], error="boom", ended_s=1.0, requested_tokens=2)).bench
    assert bench.completed == 0
    assert np.isnan(bench.mean_ttft_ms) and np.isnan(bench.p99_itl_ms)
    assert bench.request_throughput == 0


def test_names_are_those_of_the_installed_sglang(bench):
    spec = importlib.util.find_spec("sglang")
    if spec is None or spec.origin is None:
        pytest.skip("SGLang is not installed: its field names cannot be read")
    source = (Path(spec.origin).parent / "benchmark" / "serving.py").read_text(encoding="utf-8")
    # Read, not imported: the module imports half of SGLang.
    written = set(
        re.findall(r'^\s+"(\w+)": (?:metrics\.|benchmark_duration)', source, re.MULTILINE)
    )
    measured = set(re.findall(r"^    (\w+): (?:int|float)", source, re.MULTILINE))
    ours = {field.name for field in dataclasses.fields(bench)}
    assert ours - written == {"max_itl_ms"}  # printed by bench_serving, not in its JSON
    assert "max_itl_ms" in measured
    left_out = {name for name in written - ours if "retokenized" not in name}
    assert left_out == {"total_input_text_tokens", "total_input_vision_tokens"}
