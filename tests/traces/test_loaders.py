"""What each loader makes of good files, by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tokenflow_sgl.traces import PrefixBlock, TraceError
from tokenflow_sgl.traces.arrivals import BurstArrivals, PoissonArrivals
from tokenflow_sgl.traces.loaders import (
    Think,
    load_agent,
    load_azure,
    load_bench,
    load_burstgpt,
    load_mooncake,
    load_servegen,
    load_sharegpt,
)
from tokenflow_sgl.traces.loaders.mooncake import quantum

# ---- BurstGPT -----------------------------------------------------------------------

BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,API log
120,GPT-4,0,0,0,API log
121,GPT-4,10,20,31,API log
122,GPT-4,0,20,20,API log
"""


def test_burstgpt_accounts_for_every_row(write, is_balanced):
    trace = load_burstgpt(write(BURSTGPT, "BurstGPT_1.csv"))
    assert is_balanced(trace)
    assert trace.name == "BurstGPT_1"
    assert trace.accounting.rows == 6
    assert trace.accounting.dropped == {
        "no response tokens: the request failed": 2,
        "total tokens differ from request plus response tokens": 1,
        "no prompt tokens": 1,
    }
    assert [(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in trace.requests] == [
        (0.0, 472, 18),
        (113.0, 417, 276),
    ]
    assert trace.requests[0].rate is None  # the file does not say


def test_burstgpt_filters_are_accounted(write):
    trace = load_burstgpt(write(BURSTGPT), model="ChatGPT", log_type="Conversation log")
    assert trace.accounting.dropped["model is not ChatGPT"] == 4
    assert len(trace.requests) == 1
    trace = load_burstgpt(write(BURSTGPT), log_type="API log")
    assert trace.accounting.dropped["log type is not API log"] == 2
    assert trace.requests[0].arrival_s == 113.0  # the zero is the first row, kept or not


def test_burstgpt_takes_columns_by_name(write):
    text = (
        "Session ID,Elapsed time,Log Type,Total tokens,Response tokens,Request tokens,Model,"
        "Timestamp\nx,1.5,API log,3,2,1,GPT-4,7.25\n"
    )
    trace = load_burstgpt(write(text))
    assert trace.requests[0].prompt_tokens == 1
    assert "whole seconds" not in " ".join(trace.notes)


def test_late_rows_are_counted_against_the_latest_before_them(write):
    rows = "".join(f"{time},a,1,{time},{time + 1},b\n" for time in (5, 3, 4, 6))
    trace = load_burstgpt(write(BURSTGPT.splitlines()[0] + "\n" + rows), sort=True)
    assert [r.output_tokens for r in trace.requests] == [3, 4, 5, 6]
    assert "2 rows were out of order; rows were sorted by time." in trace.notes


def test_nothing_left_is_an_error(write):
    with pytest.raises(TraceError, match="none of the 6 rows is a request: 6 with model is not x"):
        load_burstgpt(write(BURSTGPT), model="x")


# ---- Azure --------------------------------------------------------------------------

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"


def test_azure_keeps_every_digit_of_a_time(write):
    text = AZURE + "2023-11-16 23:59:59.9999999,374,44\r\n2023-11-17 00:00:00.0000001,396,109"
    trace = load_azure(write(text))
    assert [r.arrival_s for r in trace.requests] == [0.0, 2e-7]
    assert trace.requests[1].output_tokens == 109


def test_azure_with_zones(write):
    text = AZURE + "2024-05-10 00:00:00.009930+00:00,1,2\n2024-05-10 02:00:01+02:00,1,2\n"
    assert load_azure(write(text)).requests[1].arrival_s == pytest.approx(0.99007, abs=1e-12)


@pytest.mark.parametrize(
    "time", ["2024-05-10 00:00:01Z", "2024-13-10 00:00:00", "10/05/2024", "2024-05-10 25:00:00"]
)
def test_azure_refuses_bad_times_and_mixed_zones(time, write):
    with pytest.raises(TraceError, match="line 3, column TIMESTAMP"):
        load_azure(write(f"{AZURE}2024-05-10 00:00:00,1,2\n{time},1,2\n"))


def test_azure_drops_requests_without_output(write):
    text = AZURE + "2023-11-16 00:00:00,1,0\n2023-11-16 00:00:03,1,2\n"
    trace = load_azure(write(text))
    assert trace.accounting.dropped == {"no output tokens": 1}
    assert trace.requests[0].arrival_s == 3.0


# ---- Mooncake -----------------------------------------------------------------------


def mooncake(rows):
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    return "\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in rows)


def test_mooncake_prefix_lengths(write):
    rows = [(100, 1025, 5, [0, 1, 2]), (1100, 1024, 6, [0, 1]), (1150, 3, 7, [9])]
    trace = load_mooncake(write(mooncake(rows), "m.jsonl"))
    first, second, third = trace.requests
    assert first.prefix == (PrefixBlock(0, 512), PrefixBlock(1, 512), PrefixBlock(2, 1))
    assert second.prefix == first.prefix[:2]
    assert third.prefix == (PrefixBlock(9, 3),)
    assert [r.arrival_s for r in trace.requests] == [0.0, 1.0, 1.05]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ((1, 513, 1, [0]), "holds 1 ids; a prompt of 513 tokens has 2"),
        ((1, 512, 1, [0, 1]), "holds 2 ids; a prompt of 512 tokens has 1"),
        ((1, 5, 1, ["x"]), "is 'x'; allowed is whole numbers"),
        ((1, 5, 1, [-1]), "is -1; allowed is whole numbers"),
        ((1, 5, 1, {"0": 1}), "is {.*}; allowed is a list"),
        ((1, 513, 1, [0, 7]), "block 7 has 1 tokens here and 4 before"),
    ],
)
def test_mooncake_refuses_blocks_that_do_not_fit(row, problem, write):
    path = write(mooncake([(0, 4, 1, [7]), row]), "m.jsonl")
    with pytest.raises(TraceError, match=f"line 2, column hash_ids: {problem}"):
        load_mooncake(path)


def quantised_rows():
    # Steps of 3 s, rounded like the published ones; four requests each.
    return [(step * 3000 + (-1) ** step * (step > 0), 5, 5, [step]) for step in range(50)] * 4


def test_mooncake_spreads_quantised_times(write, is_balanced):
    path = write(mooncake(sorted(quantised_rows())), "m.jsonl")
    trace = load_mooncake(path, seed=1)
    assert is_balanced(trace)
    times = np.array([r.arrival_s for r in trace.requests])
    assert len(set(times)) == 200
    # Each request stays in its step, and the order of the file stays.
    assert (times // 3).tolist() == sorted(list(range(50)) * 4)
    assert [r.prefix[0].id for r in trace.requests] == sorted(list(range(50)) * 4)
    assert np.mean(times % 3) == pytest.approx(1.5, abs=0.2)
    assert "spread uniformly over each step, seed 1" in trace.notes[-1]
    assert load_mooncake(path, seed=1) == trace
    assert load_mooncake(path, seed=2) != trace


def test_mooncake_leaves_times_if_told_to(write):
    path = write(mooncake(sorted(quantised_rows())), "m.jsonl")
    trace = load_mooncake(path, spread=False)
    assert len({r.arrival_s for r in trace.requests}) == 50
    assert trace.notes[-1] == "Its times are quantised to 3 s and were left so."


def test_quantum_is_not_found_where_there_is_none():
    rng = np.random.default_rng(0)
    assert quantum(np.sort(rng.uniform(0, 1e6, 1000)).round().tolist()) is None
    assert quantum([0.0, 0.0, 0.0, 3000.0, 3000.0]) is None  # too few to tell
    assert quantum([0.0] * 100) is None
    irregular = rng.uniform(0, 1e6, 100).round()
    assert quantum(sorted(irregular.tolist() * 4)) is None


# ---- ShareGPT -----------------------------------------------------------------------

SHAREGPT = """\
num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio
74,918,992,0.08
1010,20,1030,1
1030,5,1035,1
50,0,50,1
60,5,65,1
66,5,71,1
"""


def test_sharegpt_infers_conversations(write, is_balanced):
    arrivals = BurstArrivals(size=1, every_s=10)
    trace = load_sharegpt(write(SHAREGPT), arrivals=arrivals, think_s=2)
    assert is_balanced(trace)
    assert trace.accounting.dropped == {"no output tokens": 1}
    # 1030 does not exceed the total before it (1030); the dropped row opens a conversation.
    assert [(r.session, r.turn, r.arrival_s, r.think_s) for r in trace.requests] == [
        ("c0", 0, 0.0, 0.0),
        ("c0", 1, 0.0, 2.0),
        ("c1", 0, 10.0, 0.0),
        ("c2", 0, 20.0, 0.0),
        ("c2", 1, 20.0, 2.0),
    ]
    assert "conversations start by burst:size=1,every_s=10, seed 0" in trace.notes[1]


def test_sharegpt_refuses_a_total_that_is_no_sum(write):
    path = write(SHAREGPT + "1,1,3,0\n")
    with pytest.raises(TraceError, match=r"line 8, column num_total_tokens: is '3'; .* the sum, 2"):
        load_sharegpt(path, arrivals=PoissonArrivals(1))


# ---- agents -------------------------------------------------------------------------

AGENT = """\
instance_id,step,offset_s,created_unix,prompt_tokens,completion_tokens,cached_tokens
b,0,0,1000,10,100,0
b,1,5,1005,130,60,0
b,2,6,1006,200,10,0
a,0,0,997,10,20,0
a,1,9,1006,40,0,0
a,2,12,1009,50,30,0
"""


@pytest.mark.parametrize(
    ("think", "rate", "thinks"),
    [
        (Think.gap, None, {("b", 1): 5, ("b", 2): 1, ("a", 1): 12}),
        (Think.none, None, {("b", 1): 0, ("b", 2): 0, ("a", 1): 0}),
        # 5 - 100 / 50; 1 - 60 / 50 is below 0; 12 - 20 / 50
        (Think.estimate, 50.0, {("b", 1): 3, ("b", 2): 0, ("a", 1): 11.6}),
    ],
)
def test_agent_think_times(think, rate, thinks, write, is_balanced):
    trace = load_agent(write(AGENT), think=think, provider_rate=rate)
    assert is_balanced(trace)
    assert trace.accounting.dropped == {"no output tokens": 1}
    assert {(r.session, r.turn): r.think_s for r in trace.requests if r.turn} == thinks
    assert [(r.session, r.turn, r.arrival_s) for r in trace.requests] == [
        ("a", 0, 0.0),
        ("b", 0, 3.0),
        ("b", 1, 8.0),
        ("b", 2, 9.0),
        ("a", 1, 12.0),
    ]
    assert ("1 gaps were shorter" in trace.notes[-1]) == (think is Think.estimate)


def test_agent_offsets_need_not_begin_at_0(write):
    text = AGENT.splitlines()[0] + "\na,0,3,1003,1,1,0\na,1,5,1005,9,1,0\nb,0,0,1001,1,1,0\n"
    trace = load_agent(write(text), think=Think.gap)
    assert [(r.session, r.arrival_s) for r in trace.requests] == [("b", 1), ("a", 3), ("a", 5)]


def test_agent_starts_can_be_drawn(write):
    arrivals = BurstArrivals(size=1, every_s=100)
    trace = load_agent(write(AGENT), think=Think.none, arrivals=arrivals)
    starts = {r.session: r.arrival_s for r in trace.requests if r.turn == 0}
    assert starts == {"b": 0.0, "a": 100.0}
    assert "burst:size=1,every_s=100" in trace.notes[1]


@pytest.mark.parametrize(("think", "rate"), [(Think.estimate, None), (Think.gap, 50.0)])
def test_agent_rate_belongs_to_estimate(think, rate, write):
    with pytest.raises(TraceError, match="think=estimate"):
        load_agent(write(AGENT), think=think, provider_rate=rate)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("a,4,13,1010,5,5,0", "column step: is '4'; allowed is 3"),
        ("a,3,11,1008,5,5,0", "column offset_s: is earlier than the call before it"),
        ("b,0,0,1010,5,5,0", "column instance_id: is 'b'"),
        ("c,1,0,1010,5,5,0", "column step: is '1'; allowed is 0"),
    ],
)
def test_agent_refuses_broken_runs(row, problem, write):
    with pytest.raises(TraceError, match=f"line 8, {problem}"):
        load_agent(write(AGENT + row), think=Think.none)


# ---- bench_serving ------------------------------------------------------------------


def bench(**changes):
    run = {
        "backend": "sglang",
        "dataset_name": "random",
        "request_rate": 4,
        "input_lens": [10, 20, 30, 40],
        "output_lens": [5, 0, 7, 0],
        "ttfts": [0.1, 0, 0.2, 0],
        "itls": [[0.1], [], [0.1], []],
        "generated_texts": ["a", "", "b", ""],
        "errors": ["", "", "", "timed out"],
    }
    return json.dumps({**run, **changes}) + "\n"


def test_bench_requests_and_failures(write, is_balanced):
    path = write(bench(), "r.jsonl")
    trace = load_bench(path, arrivals=BurstArrivals(size=1, every_s=2))
    assert is_balanced(trace)
    assert trace.accounting.dropped == {
        "no output tokens": 1,
        "an error: the request failed": 1,
    }
    assert [(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in trace.requests] == [
        (0.0, 10, 5),
        (2.0, 30, 7),
    ]
    assert trace.notes[0] == "bench_serving run 1 (backend sglang, dataset random)."


def test_bench_without_details_says_how_to_get_them(write):
    plain = {key: value for key, value in json.loads(bench()).items() if not key.endswith("lens")}
    with pytest.raises(TraceError, match=r"column input_lens: .*--output-details"):
        load_bench(write(json.dumps(plain), "r.jsonl"), arrivals=PoissonArrivals(1))


def test_bench_with_an_unlimited_rate_is_read(write):
    # Python writes what JSON does not have; so does bench_serving, for --request-rate inf.
    path = write(bench(request_rate=float("inf")), "r.jsonl")
    assert "Infinity" in path.read_text()
    assert len(load_bench(path, arrivals=PoissonArrivals(1)).requests) == 2
    path = write(bench(input_lens=[10, float("nan"), 30, 40]), "n.jsonl")
    with pytest.raises(TraceError, match="column input_lens"):
        load_bench(path, arrivals=PoissonArrivals(1))


def test_bench_with_several_runs_needs_a_choice(write):
    path = write(bench() + bench(input_lens=[1, 2, 3, 4]), "r.jsonl")
    with pytest.raises(TraceError, match="several runs; run=NUMBER"):
        load_bench(path, arrivals=PoissonArrivals(1))
    trace = load_bench(path, arrivals=PoissonArrivals(1), run=2)
    assert [r.prompt_tokens for r in trace.requests] == [1, 3]
    trace = load_bench(path, arrivals=PoissonArrivals(1), run=1)
    assert [r.prompt_tokens for r in trace.requests] == [10, 30]
    with pytest.raises(TraceError, match="run is 3; allowed is 1 to 2"):
        load_bench(path, arrivals=PoissonArrivals(1), run=3)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"output_lens": [1]}, "column output_lens: holds 1 values, input_lens 4"),
        ({"errors": []}, "column errors: holds 0 values"),
        ({"input_lens": [1, 2, True, 4]}, "column input_lens: is True"),
        ({"output_lens": [1, 2, 3, -4]}, "column output_lens: is -4"),
        ({"errors": ["", "", 5, ""]}, "column errors: is 5"),
        ({"errors": "none"}, "column errors: is 'none'; allowed is a list"),
    ],
)
def test_bench_refuses_broken_details(changes, problem, write):
    with pytest.raises(TraceError, match=f"line 1, {problem}"):
        load_bench(write(bench(**changes), "r.jsonl"), arrivals=PoissonArrivals(1))


# ---- ServeGen -----------------------------------------------------------------------

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
        (("Weibull", "Pareto"), "line 3, column pattern: is 'Pareto'"),
        (("0.25,9", "0,9"), "line 2, column arg1: is '0'; allowed is a number above 0"),
        (("1,87000", "1,86400"), "line 3, column window_start_s: client 1 has this window twice"),
        (("2.0,1,", "x,1,"), "line 3, column rate_rps: is 'x'"),
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
