"""The real traces, where they are at hand: known counts and figures."""

from __future__ import annotations

import numpy as np
import pytest

from tokenflow_sgl.lab.traces import load_native, open_trace, summarise, write_native


def test_azure(real, is_balanced, tmp_path):
    trace = open_trace(f"azure:{real('azure2023/AzureLLMInferenceTrace_conv.csv')}")
    assert is_balanced(trace)
    assert trace.accounting.rows == len(trace.requests) == 19_366
    assert (trace.requests[0].prompt_tokens, trace.requests[0].output_tokens) == (374, 44)
    # 18:15:50.9951690 - 18:15:46.6805900, to the digit
    assert trace.requests[1].arrival_s == 4.314579
    write_native(tmp_path / "a.jsonl", trace)
    assert load_native(tmp_path / "a.jsonl") == trace


def test_mooncake_conversation(real, is_balanced):
    path = real("mooncake/conversation_trace.jsonl")
    trace = open_trace(f"mooncake:{path}?seed=5")
    assert is_balanced(trace)
    assert len(trace.requests) == 12_031
    assert "Arrivals quantised to 3 s were spread" in trace.notes[-1]
    times = np.array([r.arrival_s for r in trace.requests])
    assert len(set(times)) > 12_000
    left = open_trace(f"mooncake:{path}?quantised=yes")
    assert len({r.arrival_s for r in left.requests}) == 1180
    # Each request stays within its step of 3 s (published times are rounded by some ms).
    moved = times - np.array([r.arrival_s for r in left.requests])
    assert -0.01 < moved.min() < moved.max() < 3.01
    assert summarise(trace).shared_prefix == summarise(left).shared_prefix
    assert summarise(trace).shared_prefix == pytest.approx(0.374, abs=0.001)


def test_mooncake_synthetic_is_poisson(real):
    trace = open_trace(f"mooncake:{real('mooncake/synthetic_trace.jsonl')}")
    figures = summarise(trace)
    assert figures.requests == 3993
    assert "spread" not in " ".join(trace.notes)
    assert figures.interarrival_cv == pytest.approx(1, abs=0.05)


def test_sharegpt(real, is_balanced):
    path = real("sharegpt_lengths/sharegpt_8k_filtered_stats_llama2_tokenizer.csv")
    trace = open_trace(f"sharegpt:{path}?arrivals=poisson&rate=2")
    assert is_balanced(trace)
    figures = summarise(trace)
    assert (figures.requests, figures.sessions) == (30_731, 5678)
    assert figures.turns.mean == pytest.approx(5.4, abs=0.05)
    assert max(r.prompt_tokens + r.output_tokens for r in trace.requests) <= 8192


def test_agent(real, is_balanced):
    path = real("swe_agent/mini_swe_agent_gemini3pro_calls.csv")
    trace = open_trace(f"agent:{path}?think=estimate&provider_rate=80")
    assert is_balanced(trace)
    figures = summarise(trace)
    assert (figures.requests, figures.sessions) == (20_163, 500)
    gaps = open_trace(f"agent:{path}?think=gap")
    assert figures.think_s.mean < summarise(gaps).think_s.mean


def test_servegen_thinking(real, is_balanced):
    path = real("servegen/servegen_deepseek-r1-morning_rates.csv")
    trace = open_trace(f"servegen:{path}?start=36000&duration=60")
    assert is_balanced(trace)
    thinking = [r for r in trace.requests if r.reasoning_tokens]
    assert len(thinking) > 0.9 * len(trace.requests)
    assert all(r.reasoning_tokens <= r.output_tokens for r in thinking)
    assert summarise(trace).reasoning_tokens.mean < summarise(trace).output_tokens.mean


@pytest.mark.parametrize(("model", "start"), [("large", 0), ("small", 40_000)])
def test_servegen(model, start, real, is_balanced):
    path = real(f"servegen/servegen_m-{model}_rates.csv")
    trace = open_trace(f"servegen:{path}?start={start}&duration=30")
    assert is_balanced(trace)
    dropped = trace.accounting.dropped["no length distribution for its client and time"]
    assert 0 < dropped < trace.accounting.rows
    assert trace.requests[-1].arrival_s < 30
