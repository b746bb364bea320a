"""`tokenflow simulate`, as a user types it."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.cli.chosen_engine import SimulatedServer
from tokenflow_sgl.cli.chosen_trace import TraceChoice
from tokenflow_sgl.lab.runs import read_run
from tokenflow_sgl.lab.sim import simulate
from tokenflow_sgl.lab.traces import Accounting, Trace, TraceRequest
from tokenflow_sgl.lab.traces.loaders.native import write_native
from tokenflow_sgl.lab.traces.request import PriorityUpdate
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.policy.tuning_file import write_tuning

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


BURST = (
    *("--trace", "4090-a", "--limit", "14", "--device", "rtx4090", "--policy", "tokenflow"),
    *("--kv-tokens", "9000", "--hicache-ratio", "8"),
)
TUNED = {"cycle": 1.0, "hysteresis": 3.0, "burst_eta": 2.0, "park": False}


def test_a_tuning_file_is_what_its_parameters_are(invoke, tmp_path) -> None:
    """The times of all tokens are those of a run that is given the parameters, to the last bit."""
    (tmp_path / "own.toml").write_text(
        write_tuning({"policy": TUNED, "engine": {"longest_rest": 60.0}})
    )
    done = invoke(*BURST, "--tuning", "own.toml", "--output", "tuned")
    assert done.exit_code == 0, done.output
    assert "own.toml: not simulated is [engine] longest_rest." in done.output
    assert invoke(*BURST, "--output", "shipped").exit_code == 0
    server = SimulatedServer(kv_tokens=9000, hicache_ratio=8)
    trace = TraceChoice(limit=14).open("4090-a", Console(stderr=True))
    settings = server.open("rtx4090", "llama3-8b")
    for name, config in (("tuned", WorkingSetConfig(**TUNED)), ("shipped", None)):
        wanted = simulate(trace, *settings, policy="tokenflow", config=config).run
        assert read_run(tmp_path / name / "tokenflow").tokens.equals(wanted.tokens)
    runs = [read_run(tmp_path / name / "tokenflow").tokens for name in ("tuned", "shipped")]
    assert not runs[0].equals(runs[1]), "else nothing was told"


def test_what_a_sweep_does_not_vary_is_the_files(invoke, tmp_path) -> None:
    (tmp_path / "own.toml").write_text(write_tuning({"policy": TUNED}))
    for name, more in (("tuned", ("--tuning", "own.toml")), ("shipped", ())):
        done = invoke(*BURST, "--sweep", "eta=0.9", *more, "--output", name)
        assert done.exit_code == 0, done.output
    tables = [pq.read_table(tmp_path / name / "sweep.parquet") for name in ("tuned", "shipped")]
    assert tables[0].column_names == tables[1].column_names
    assert not tables[0].equals(tables[1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[policy]\neta = 11", "[policy] eta is 11; allowed is 0.1 to 10"),
        ("[policy]\netta = 1", "[policy] has no 'etta'; allowed are eta, "),
        ("eta = 1", "eta stands in the wrong place; allowed is in [policy]"),
    ],
)
def test_a_tuning_file_that_cannot_be_used_is_refused(invoke, tmp_path, text, message) -> None:
    (tmp_path / "own.toml").write_text(text)
    done = invoke(*BURST, "--tuning", "own.toml")
    assert done.exit_code == 2
    assert f"No simulation: tuning file own.toml: {message}" in " ".join(done.output.split())


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
