"""What the loader makes of bench_serving's results, by hand."""

from __future__ import annotations

import json

import pytest

from tokenflow_sgl.lab.traces import TraceError
from tokenflow_sgl.lab.traces.generators.arrivals import BurstArrivals, PoissonArrivals
from tokenflow_sgl.lab.traces.loaders import load_bench


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
        ({"errors": "none"}, "column errors: is a text of 4 characters; allowed is a list"),
    ],
)
def test_bench_refuses_broken_details(changes, problem, write):
    with pytest.raises(TraceError, match=f"line 1, {problem}"):
        load_bench(write(bench(**changes), "r.jsonl"), arrivals=PoissonArrivals(1))


STARTS = [100.5, 100.0, 101.25, 99.5]


def test_a_run_of_vllm_arrives_as_it_was_sent(write, is_balanced):
    path = write(bench(start_times=STARTS), "r.jsonl")
    trace = load_bench(path)
    assert is_balanced(trace)
    # Zero is the first request that was sent, though it failed; the second had no output.
    assert [(r.arrival_s, r.prompt_tokens) for r in trace.requests] == [(1.0, 10), (1.75, 30)]
    assert trace.notes[1] == "Requests arrive as in the run, by its start_times."


def test_requests_are_in_the_order_of_sending(write):
    trace = load_bench(
        write(bench(start_times=[3, 1, 2, 0], output_lens=[1] * 4, errors=[""] * 4), "r.jsonl")
    )
    assert [(r.arrival_s, r.prompt_tokens) for r in trace.requests] == [
        (0.0, 40),
        (1.0, 20),
        (2.0, 30),
        (3.0, 10),
    ]


def test_arrivals_that_are_given_count(write):
    path = write(bench(start_times=STARTS), "r.jsonl")
    trace = load_bench(path, arrivals=BurstArrivals(size=1, every_s=2))
    assert [r.arrival_s for r in trace.requests] == [0.0, 2.0]
    assert trace.notes[1].startswith("Its start_times were left out: requests arrive by burst")


def test_a_run_without_send_times_needs_arrivals(write):
    with pytest.raises(TraceError, match="has no start_times, so arrivals must be given, as in"):
        load_bench(write(bench(), "r.jsonl"))


@pytest.mark.parametrize(
    ("starts", "problem"),
    [
        ([1.0], "column start_times: holds 1 values, input_lens 4"),
        ([1, 2, 3, True], "column start_times: is True; allowed is finite numbers of seconds"),
        ([1, 2, 3, float("nan")], "column start_times: is nan"),
        ("soon", "column start_times: is a text of 4 characters; allowed is a list"),
    ],
)
def test_start_times_that_cannot_be_used_are_named(write, starts, problem):
    with pytest.raises(TraceError, match=problem):
        load_bench(write(bench(start_times=starts), "r.jsonl"))
