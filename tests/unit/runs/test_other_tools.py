"""Results of other benchmarks: what a run makes of them, and what is refused."""

from __future__ import annotations

import json
import math

import pytest
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.lab.report import figures
from tokenflow_sgl.lab.runs import RunError, read_results
from tokenflow_sgl.lab.runs.other_tools import NO_SEND_TIMES, NO_TOKEN_TIMES
from tokenflow_sgl.lab.runs.recording import record

SECRET = "Wittgenstein"
START = 1_759_813_207_000_000_000


@pytest.fixture
def write(tmp_path):
    """Writes a file of values, one a line, and returns its path."""

    def make(*values: object, name: str = "result.json"):
        path = tmp_path / name
        texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
        path.write_text("\ufeff" + "\r\n".join(texts))
        return path

    return make


def aiperf(start_ms: float = 0.0, **changes) -> dict:
    values = {
        "input_sequence_length": 550,
        "output_sequence_length": 4,
        "time_to_first_token": 250.0,
        "inter_chunk_latency": [10.0, 2000.0, 10.0],
        "request_latency": 2300.0,
    } | changes.pop("metrics", {})
    metadata = {
        "session_num": 0,
        "conversation_id": SECRET,
        "request_start_ns": START + int(start_ms * 1e6),
        "request_end_ns": START + int((start_ms + 2300) * 1e6),
        "benchmark_phase": "profiling",
        "was_cancelled": False,
    } | changes.pop("metadata", {})
    metrics = {name: {"value": v, "unit": "ms"} for name, v in values.items() if v is not None}
    return {"metadata": metadata, "metrics": metrics, "error": None, **changes}


def test_aiperf_has_stalls_where_it_has_times_of_chunks(write) -> None:
    failed = aiperf(
        20.0,
        metadata={"was_cancelled": True},
        metrics={"error_isl": 9},
        error={"code": 499, "type": SECRET, "message": SECRET},
    )
    warm = aiperf(-500.0, metadata={"benchmark_phase": "warmup"})
    (run,) = read_results(write(aiperf(1000.0), failed, warm), 20.0)
    found, read = figures(run), record(run)
    assert run.info.invalid == ()
    assert len(read) == 2
    assert read.tokens(1) == pytest.approx([1.75, 1.76, 3.76, 3.77])
    assert found.latency.ttft_sent.mean == pytest.approx(0.25)
    # Two tokens last 0.1 s from the first one on, the third comes after 2.01 s.
    assert found.readers.stall_seconds == pytest.approx(2.01 - 0.1, abs=1e-6)
    assert read.error[0] == "error 499"
    assert SECRET not in repr(run)


def test_aiperf_without_times_of_chunks_is_marked(write) -> None:
    row = aiperf(metrics={"inter_chunk_latency": None})
    (run,) = read_results(write(row, row), 20.0)
    assert run.info.invalid == (NO_TOKEN_TIMES,)
    assert record(run).tokens(0) == pytest.approx([0.25, 0.25 + 2.05 / 3, 0.25 + 4.1 / 3, 2.3])


def test_chunks_of_several_tokens(write) -> None:
    (run,) = read_results(write(aiperf(metrics={"output_sequence_length": 8})), 20.0)
    counts = [record(run).tokens(0).tolist().count(t) for t in sorted(set(record(run).tokens(0)))]
    assert counts == [1, 2, 2, 3]
    assert "about equally many" in run.info.target["notes"][0]


def guidellm(**changes) -> dict:
    timings = {"request_start": 10.0, "first_token_iteration": 10.5, "last_token_iteration": 12.5}
    row = {
        "request_id": SECRET,
        "output": SECRET,
        "prompt_tokens": 30,
        "output_tokens": 5,
        "request_start_time": 10.0,
        "request_end_time": 12.6,
        "info": {"status": "completed", "timings": timings},
        **changes,
    }
    late = {**row, "request_start_time": 11.0, "request_end_time": 11.5}
    requests = {"successful": [row], "incomplete": [late], "errored": []}
    return {"metadata": {}, "benchmarks": [{"config": {}, "requests": requests}] * 2}


def test_guidellm_has_a_run_for_each_benchmark_and_no_stalls(write) -> None:
    runs = read_results(write(guidellm(), name="sweep.json"), 20.0)
    assert [run.info.name for run in runs] == ["sweep 1", "sweep 2"]
    assert all(run.info.invalid == (NO_TOKEN_TIMES,) for run in runs)
    read = record(runs[0])
    assert read.tokens(0) == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.5])
    assert read.error == (None, "incomplete")


def bench(**changes) -> dict:
    run = {
        "backend": "vllm",
        "total_input_tokens": 60,
        "input_lens": [10, 20, 30],
        "output_lens": [3, 1, 0],
        "ttfts": [0.1, 0.2, 0.0],
        "itls": [[0.01, 1.5], [], []],
        "start_times": [100.0, 99.5, 101.0],
        "generated_texts": [SECRET] * 3,
        "errors": ["", "", SECRET],
    }
    return {key: value for key, value in {**run, **changes}.items() if value is not None}


def test_vllm_has_its_own_times(write) -> None:
    (run,) = read_results(write(bench()), 20.0)
    assert run.info.invalid == ()
    read = record(run)
    assert read.scheduled.tolist() == [0.0, 0.5, 1.5]
    assert read.tokens(1) == pytest.approx([0.6, 0.61, 2.11])
    assert figures(run).latency.ttft_sent.mean == pytest.approx(0.15)
    assert SECRET not in repr(run)


def test_sglang_appends_runs_and_says_not_when_requests_were_sent(write) -> None:
    one = bench(start_times=None)
    first, second = read_results(write(one, one, name="runs.jsonl"), 20.0)
    assert (first.info.name, second.info.name) == ("runs 1", "runs 2")
    assert first.info.invalid == (NO_SEND_TIMES,)
    assert figures(first).latency.ttft_sent.mean == pytest.approx(0.15)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", "is empty"),
        ("{", "line 1: is not JSON; allowed is one object, or one a line"),
        ("[" * 100_000, "is not JSON"),
        ("[1]", "line 1: is no JSON object"),
        ({"text": SECRET}, "is no result that is known; allowed are a folder of a run, AIPerf's"),
        (bench(itls=None), "--save-detailed"),
        ({"request_latency": {"avg": 1}}, "give AIPerf's profile_export.jsonl beside it"),
        (bench(ttfts=[0.1]), "ttfts is 1; allowed is a list of 3, as many as input_lens has"),
        (bench(ttfts=[0.1, -1, 0]), "ttfts is -1; allowed is a finite number of at least 0"),
        (bench(itls=[[math.nan, 1], [], []]), "itls is nan; allowed is a finite number"),
        (bench(itls=[[10**400, 1], [], []]), "itls is 1000"),
        (bench(output_lens=[2.5, 1, 1]), "output_lens is 2.5; allowed is a whole number"),
        (bench(output_lens=[2**31, 1, 1]), "output_lens is 2147483648; allowed is a whole number"),
        (bench(input_lens=[SECRET, 1, 1]), "input_lens is a str; allowed is a finite number"),
        (
            bench(input_lens=[], output_lens=[], ttfts=[], itls=[], errors=[], start_times=[]),
            "has no",
        ),
        (
            aiperf(metadata={"request_start_ns": SECRET}),
            "line 1: metadata.request_start_ns is a str",
        ),
        (aiperf(metadata={"request_end_ns": 5}), "metadata.request_end_ns is 5"),
        (
            aiperf(metrics={"time_to_first_token": None}),
            "metrics.time_to_first_token is a NoneType",
        ),
        (aiperf(metrics={"output_sequence_length": -3}), "output_sequence_length is -3"),
        (aiperf(metrics={"inter_chunk_latency": [-1.0]}), "inter_chunk_latency is -1.0"),
        ({"benchmarks": []}, "benchmarks is no list with a benchmark"),
        ({"benchmarks": [{}]}, "benchmark 1: requests is a NoneType; allowed is an object"),
        (guidellm(info=None), "successful request 0: info is a NoneType; allowed is an object"),
        (guidellm(output_tokens=None), "output_tokens is a NoneType"),
        (guidellm(request_end_time=1.0), "request_end_time is 1.0; allowed is a finite number of"),
    ],
)
def test_what_is_wrong_is_said_without_the_files_words(write, value, problem) -> None:
    path = write(value)
    with pytest.raises(RunError) as caught:
        read_results(path, 20.0)
    assert problem in str(caught.value)
    assert SECRET not in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_report_reads_them_and_compares(write) -> None:
    path = write(bench(), name="bench.json")
    done = CliRunner().invoke(app, ["report", str(path), "--json", "--rate", "10"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["run"]["valid"] is True
    done = CliRunner().invoke(app, ["report", str(write(guidellm(), name="sweep.json"))])
    assert done.exit_code == 0, done.output
    assert "INVALID" in done.stdout
    done = CliRunner().invoke(app, ["report", str(write({}, name="none.json"))])
    assert done.exit_code == 2
