"""`tokenflow simulate`, as a user types it."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.lab.runs import read_run
from tokenflow_sgl.lab.traces import Accounting, Trace, TraceRequest
from tokenflow_sgl.lab.traces.loaders.native import write_native
from tokenflow_sgl.lab.traces.request import PriorityUpdate

runner = CliRunner()


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*words: str):
        return runner.invoke(app, ["simulate", *words])

    return run


def test_a_table_a_page_and_the_runs(invoke, tmp_path) -> None:
    done = invoke(
        *("--trace", "4090-a", "--limit", "12", "--device", "rtx4090"),
        *("--kv-tokens", "9000", "--hicache-ratio", "8"),
    )
    assert done.exit_code == 0, done.output
    assert "tokenflow against fcfs" in done.output
    assert "effective throughput" in done.output
    assert "No scheduler can do better here than" in done.output
    folder = tmp_path / "simulate-results" / "4090-a-1"
    page = (folder / "report.html").read_text()
    assert "<svg" in page
    for name in ("fcfs", "tokenflow"):
        run = read_run(folder / name)
        assert run.info.source == "simulate"
        assert run.info.target["server_args"]["max_total_tokens"] == 9000
        assert run.requests.num_rows == 12
        assert run.tokens.num_rows == sum(run.requests["requested_tokens"].to_pylist())


def test_one_policy_alone(invoke, tmp_path) -> None:
    done = invoke(
        *("--trace", "4090-a", "--limit", "3", "--device", "rtx4090", "--policy", "fcfs"),
        *("--output", "here"),
    )
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["fcfs", "report.html"]


def test_more_runs_than_a_page_shows(invoke, tmp_path) -> None:
    policies = "fcfs,fcfs-hicache,chunked,vtc,vllm,andes,round-robin"
    done = invoke(
        *("--trace", "4090-a", "--limit", "2", "--device", "rtx4090", "--policy", policies),
        *("--output", "here"),
    )
    assert done.exit_code == 0, done.output
    assert "round-robin against fcfs" in done.output
    assert "here/report.html shows the first 6 runs." in done.output
    page = (tmp_path / "here" / "report.html").read_text()
    assert "andes" in page and "round-robin" not in page


def test_no_bounds_with_speculation(invoke) -> None:
    done = invoke(
        *("--trace", "4090-a", "--limit", "2", "--device", "rtx4090", "--policy", "fcfs"),
        *("--speculative-num-draft-tokens", "4", "--acceptance", "4"),
    )
    assert done.exit_code == 0, done.output
    assert "No bounds are known with speculation." in done.output
    assert "No scheduler can do better" not in done.output


def test_changes_of_priority_are_noted_as_not_simulated(invoke, tmp_path) -> None:
    requests = (TraceRequest(0.0, 20, 5, rate=10.0, priority=0),)
    updates = (PriorityUpdate(0.1, 0, 5),)
    trace = Trace("changing", requests, Accounting(1, 1), priority_updates=updates)
    write_native(tmp_path / "changing.jsonl", trace)
    done = invoke(
        *("--trace", str(tmp_path / "changing.jsonl"), "--device", "rtx4090"),
        *("--policy", "fcfs", "--output", "here"),
    )
    assert done.exit_code == 0, done.output
    assert "Note: 1 changes of priority were not simulated." in done.output
    notes = read_run(tmp_path / "here" / "fcfs").info.target["notes"]
    assert notes == ["1 changes of priority were not simulated."]


def test_a_storage_is_among_the_settings(invoke, tmp_path) -> None:
    done = invoke(
        *("--trace", "4090-a", "--limit", "3", "--device", "rtx4090", "--policy", "fcfs-hicache"),
        *("--storage-gbps", "10", "--restore", "auto", "--output", "here"),
    )
    assert done.exit_code == 0, done.output
    settings = read_run(tmp_path / "here" / "fcfs-hicache").info.target["server_args"]
    assert settings["storage_gbps"] == 10.0
    assert settings["restore"] == "auto"
    assert settings["hicache_storage_prefetch_policy"] == "timeout"


@pytest.mark.long
def test_a_sweep_is_a_table_a_file_and_a_picture(invoke, tmp_path) -> None:
    done = invoke(
        *("--trace", "4090-a", "--limit", "12", "--device", "rtx4090", "--kv-tokens", "9000"),
        *("--sweep", "eta=0.8,1.2", "--sweep", "park=true,false"),
    )
    assert done.exit_code == 0, done.output
    assert "effective" in done.output
    folder = tmp_path / "simulate-results" / "4090-a-1"
    rows = pq.read_table(folder / "sweep.parquet").to_pylist()
    assert [(row["eta"], row["park"]) for row in rows] == [
        (0.8, True),
        (0.8, False),
        (1.2, True),
        (1.2, False),
    ]
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "fcfs,fifo"], "policy is 'fifo'; allowed is"),
        (["--device", "rtx9090"], "rtx9090"),
        (["--kv-tokens", "0"], "Invalid value for '--kv-tokens'"),
        (["--kv-tokens", "500"], "--kv-tokens is 500 (max_total_tokens)"),
        (["--hicache-ratio", "-1"], "Invalid value for '--hicache-ratio'"),
        (["--trace", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--sweep", "speed=1"], "sweep is 'speed=1'; allowed is KEY=VALUE"),
        (["--sweep", "eta=1", "--replicas", "2"], "sweep varies tokenflow on one server"),
        (["--sweep", "eta=1", "--policy", "andes"], "sweep varies tokenflow on one server"),
        (["--ray"], "ray is for sweeps; allowed is --ray with --sweep"),
        (["--policy", "nowhere:Policy"], "policy 'nowhere:Policy' cannot be loaded"),
        (["--hicache-write-policy", "never"], "Invalid value for '--hicache-write-policy'"),
        (["--hicache-io-backend", "fast"], "Invalid value for '--hicache-io-backend'"),
        (
            ["--hicache-mem-layout", "page_first_direct"],
            "hicache_mem_layout is 'page_first_direct'; allowed with the I/O backend kernel is",
        ),
        (["--storage-gbps", "-1"], "Invalid value for '--storage-gbps'"),
        (["--storage-gbps", "nan"], "Invalid value for '--storage-gbps'"),
        (["--storage-latency-us", "-1"], "Invalid value for '--storage-latency-us'"),
        (["--storage-writes", "dear"], "Invalid value for '--storage-writes'"),
        (["--restore", "on"], "Invalid value for '--restore'"),
        (["--restore", "auto"], "allowed without a storage (storage_gbps) is 'off'"),
        (
            ["--hicache-storage-prefetch-policy", "never"],
            "Invalid value for '--hicache-storage-prefetch-policy'",
        ),
        (["--sliding-window", "-1"], "Invalid value for '--sliding-window'"),
        (["--swa-full-tokens-ratio", "0"], "swa_full_tokens_ratio is 0.0; allowed is above 0"),
        (["--window", "abc"], "--window is 'abc'; allowed is START:SECONDS"),
    ],
)
def test_what_cannot_be_simulated_is_said(invoke, tmp_path, words, message) -> None:
    done = invoke("--trace", "4090-a", *words)
    assert done.exit_code == 2
    assert message in done.output.replace("\n", " ")
    assert not list(tmp_path.glob("simulate-results/*"))
