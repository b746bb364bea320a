"""What the loader makes of ServeGen files, by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tokenflow_sgl.lab.traces import TraceError
from tokenflow_sgl.lab.traces.loaders import load_servegen

RATES = """\
client,window_start_s,rate_rps,cv,pattern,arg1,arg2
1,86400,1.0,2,Gamma,0.25,9
1,87000,2.0,1,Weibull,1.0,9
2,86400,0.5,1,Gamma,1.0,9
3,86400,0.25,1,Gamma,1.0,9
"""
SERVEGEN_LENGTHS = [
    {
        "client": 1,
        "window_start_s": 86400,
        "input_tokens": {"10": 0.25, "20": 0.75},
        "output_tokens": {"5": 0.9, "0": 0.1},
    },
    {
        "client": 3,
        "window_start_s": 86400,
        "input_tokens": {"0": 1},
        "output_tokens": {"5": 1},
        "reason_ratio": {"0.5": 1},
    },
]


@pytest.fixture
def servegen(write):
    lengths = "\n".join(map(json.dumps, SERVEGEN_LENGTHS))
    return write(RATES, "x_rates.csv"), write(lengths, "x_lengths.jsonl")


def test_servegen_counts_and_lengths(servegen, is_balanced):
    trace = load_servegen(*servegen, start_s=0, duration_s=1200, seed=3)
    assert is_balanced(trace)
    # 600 + 1200 of client 1, 300 of client 2, 150 of client 3: the rates are exact.
    assert trace.accounting.rows == 2250
    dropped = dict(trace.accounting.dropped)
    assert dropped.pop("no length distribution for its client and time") == 300
    assert dropped.pop("no prompt tokens") == 150
    assert dropped.pop("no output tokens") == pytest.approx(180, abs=45)
    assert not dropped
    prompts = np.array([r.prompt_tokens for r in trace.requests])
    assert set(prompts) == {10, 20}
    assert (prompts == 20).mean() == pytest.approx(0.75, abs=0.04)
    assert {r.output_tokens for r in trace.requests} == {5}
    assert all(0 <= r.arrival_s < 1200 for r in trace.requests)
    assert load_servegen(*servegen, start_s=0, duration_s=1200, seed=3) == trace
    assert load_servegen(*servegen, start_s=0, duration_s=1200, seed=4) != trace


def test_servegen_draws_thinking_by_its_share(write):
    lengths = {**SERVEGEN_LENGTHS[0], "output_tokens": {"100": 1}}
    rates = write(RATES, "x_rates.csv")
    plain = load_servegen(
        rates, write(json.dumps(lengths), "a.jsonl"), start_s=0, duration_s=600, seed=3
    )
    ratio = {"0.0": 0.25, "0.5": 0.75}
    trace = load_servegen(
        rates,
        write(json.dumps({**lengths, "reason_ratio": ratio}), "b.jsonl"),
        start_s=0,
        duration_s=600,
        seed=3,
    )
    thinking = np.array([request.reasoning_tokens for request in trace.requests])
    assert set(thinking) == {0, 50}
    assert (thinking == 50).mean() == pytest.approx(0.75, abs=0.06)
    assert "thinking is drawn" in trace.notes[-1]
    # Nothing else is drawn differently.
    assert [replace(r, reasoning_tokens=0) for r in trace.requests] == list(plain.requests)


def test_servegen_cuts_windows(servegen):
    trace = load_servegen(*servegen, start_s=300, duration_s=600, seed=3)
    assert trace.requests[0].arrival_s >= 0
    assert 590 < trace.requests[-1].arrival_s < 600
    # Half a window of the rate 1.0 (bursty), half of 2.0; 10 % have no output.
    assert len(trace.requests) == pytest.approx(0.9 * 900, rel=0.25)


def test_servegen_families(write):
    lengths = write(json.dumps({**SERVEGEN_LENGTHS[0], "output_tokens": {"5": 1}}), "l.jsonl")

    def cv(family, shape):
        rates = f"{RATES.splitlines()[0]}\n1,86400,20,1,{family},{shape},1\n"
        trace = load_servegen(write(rates, "r.csv"), lengths, start_s=0, duration_s=600)
        gaps = np.diff([r.arrival_s for r in trace.requests])
        return gaps.std() / gaps.mean()

    assert cv("Gamma", 0.25) == pytest.approx(2.0, rel=0.06)  # 1 / sqrt(shape)
    assert cv("Gamma", 4) == pytest.approx(0.5, rel=0.06)
    assert cv("Weibull", 1) == pytest.approx(1.0, rel=0.06)  # exponential
    assert cv("Weibull", 0.5) == pytest.approx(5**0.5, rel=0.1)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("Weibull", "Pareto"), "line 3, column pattern: is a text of 6 characters"),
        (("0.25,9", "0,9"), "line 2, column arg1: is '0'; allowed is a number above 0"),
        (("1,87000", "1,86400"), "line 3, column window_start_s: client 1 has this window twice"),
        (("2.0,1,", "x,1,"), "line 3, column rate_rps: is a text of 1 char"),
    ],
)
def test_servegen_refuses_broken_rates(change, problem, servegen):
    rates, lengths = servegen
    rates.write_text(RATES.replace(*change))
    with pytest.raises(TraceError, match=problem):
        load_servegen(rates, lengths, start_s=0, duration_s=600)


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("input_tokens", {}, "an object of probabilities"),
        ("input_tokens", [1], "an object of probabilities"),
        ("output_tokens", {"5": 0.4, "6": 0.4}, "is 0.8; allowed is probabilities that add up"),
        ("output_tokens", {"5": 1.5, "6": -0.5}, "is 1.5; allowed is probabilities from 0 to 1"),
        ("output_tokens", {"-5": 1}, "is '-5'; allowed is token counts"),
        ("output_tokens", {"9999999999": 1}, "allowed is token counts"),
        ("reason_ratio", {"1.5": 1}, "is '1.5'; allowed is shares from 0 to 1 as keys"),
        ("reason_ratio", {"half": 1}, "is a text of 4 characters; allowed is shares"),
        ("reason_ratio", [], "an object of probabilities by shares"),
    ],
)
def test_servegen_refuses_broken_lengths(column, value, problem, servegen):
    rates, lengths = servegen
    lengths.write_text(json.dumps({**SERVEGEN_LENGTHS[0], column: value}))
    with pytest.raises(TraceError, match=f"line 1, column {column}: .*{problem}"):
        load_servegen(rates, lengths, start_s=0, duration_s=600)


def test_servegen_refuses_what_it_cannot_sample(servegen):
    rates, lengths = servegen
    with pytest.raises(TraceError, match="start is -1"):
        load_servegen(rates, lengths, start_s=-1, duration_s=600)
    with pytest.raises(TraceError, match="has no data rows"):
        load_servegen(rates, lengths, start_s=5000, duration_s=600)
    rates.write_text(RATES.replace("2.0,1,", "1e9,1,"))
    with pytest.raises(TraceError, match=r"6e\+11 requests lie in the windows"):
        load_servegen(rates, lengths, start_s=0, duration_s=1200)


@pytest.mark.parametrize("shape", ["0.001", "0.0001"])
def test_gaps_that_have_no_finite_sum_are_refused(shape, servegen, write):
    rates = write(RATES.replace("Weibull,1.0", f"Weibull,{shape}"), "y_rates.csv")
    with pytest.raises(TraceError, match=f"line 3, column arg1: is {shape}; allowed is a shape"):
        load_servegen(rates, servegen[1], start_s=0, duration_s=1200)


def test_gaps_near_zero_lose_no_request(servegen, write):
    # Of one request and two tiny gaps the sum may be so small that no number scales it.
    head = RATES.splitlines()[0]
    clients = [f"{client},86400,0.0017,2,Gamma,0.001,9" for client in range(300)]
    rates = write("\n".join([head, *clients]), "y_rates.csv")
    lengths = {**SERVEGEN_LENGTHS[0], "output_tokens": {"5": 1}}
    known = write(
        "\n".join(json.dumps({**lengths, "client": client}) for client in range(300)), "y.jsonl"
    )
    trace = load_servegen(rates, known, start_s=0, duration_s=1200)
    # An arrival may lie at its window's very end, but none is lost.
    assert len(trace.requests) == 300
