from __future__ import annotations

import numpy as np
import pytest

from tokenflow_sgl.lab.traces import WORKLOADS, TraceError

TABLE_1 = {  # burst or rate, input mean; TokenFlow, Table 1 and section 7.3
    "4090-a": (60, None, 512),
    "4090-b": (80, None, 1024),
    "4090-c": (None, 2, 512),
    "4090-d": (None, 4, 512),
    "h200-a": (400, None, 512),
    "h200-b": (200, None, 1024),
    "h200-c": (None, 5, 512),
    "h200-d": (None, 10, 512),
}


def test_names():
    assert list(WORKLOADS) == list(TABLE_1)


@pytest.mark.parametrize("name", TABLE_1)
def test_table_1(name, is_balanced):
    burst, rate, input_mean = TABLE_1[name]
    workload = WORKLOADS[name]
    h200 = name.startswith("h200")
    assert workload.device == ("h200" if h200 else "rtx4090")
    assert workload.model == "llama3-8b"
    assert workload.kv_tokens == (200_000 if h200 else 35_000)
    trace = workload.trace()
    assert is_balanced(trace)
    assert trace.name == name
    if burst:
        assert len(trace.requests) == burst
        assert {r.arrival_s for r in trace.requests} == {0.0}
    else:
        assert len(trace.requests) == pytest.approx(120 * rate, rel=0.2)
        assert trace.requests[-1].arrival_s < 120
    prompts = np.array([r.prompt_tokens for r in trace.requests])
    outputs = np.array([r.output_tokens for r in trace.requests])
    assert prompts.mean() == pytest.approx(input_mean, rel=0.08)
    assert outputs.mean() == pytest.approx(4096 if h200 else 2048, rel=0.08)
    assert prompts.std() == pytest.approx(input_mean / 4, rel=0.25)
    assert {r.rate for r in trace.requests} == {20.0}


def test_draws_are_in_a_fixed_order():
    """Arrivals, inputs, outputs from one stream: what the prototype's figures were made with."""
    rng = np.random.default_rng(7)
    times = np.sort(rng.uniform(0, 120, rng.poisson(10 * 120)))
    inputs = np.clip(rng.normal(512, 128, len(times)), 16, 1280).astype(int)
    outputs = np.clip(rng.normal(4096, 1024, len(times)), 16, 10240).astype(int)
    trace = WORKLOADS["h200-d"].trace(seed=7)
    assert np.allclose([r.arrival_s for r in trace.requests], times, atol=1e-6, rtol=0)
    assert [r.prompt_tokens for r in trace.requests] == inputs.tolist()
    assert [r.output_tokens for r in trace.requests] == outputs.tolist()


def test_scale():
    small = WORKLOADS["h200-a"].trace(scale=0.1)
    assert len(small.requests) == 40
    assert "scaled to 0.1" in small.notes[0]
    assert len(WORKLOADS["h200-a"].trace(scale=1e-9).requests) == 1
    short = WORKLOADS["h200-d"].trace(scale=0.5, duration_s=40)
    assert short.requests[-1].arrival_s < 20
    assert "10/s for 20 s" in short.notes[0]


@pytest.mark.parametrize("scale", [0, -1, float("nan"), float("inf")])
def test_bad_scale(scale):
    with pytest.raises(TraceError, match="scale is"):
        WORKLOADS["h200-a"].trace(scale=scale)


def test_a_burst_has_no_duration():
    with pytest.raises(TraceError, match="duration is 5, but h200-a is one burst"):
        WORKLOADS["h200-a"].trace(duration_s=5)
