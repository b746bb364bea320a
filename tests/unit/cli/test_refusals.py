"""What cannot be done is refused with one sentence, before the work, by one code everywhere."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tokenflow_sgl import choices
from tokenflow_sgl.cli.app import app

EMPTY = {
    **{"format": "tokenflow-trace", "version": 1, "name": "empty", "requests": 0, "updates": 0},
    **{"accounting": {"rows": 0, "emitted": 0, "dropped": {}}, "notes": []},
}
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    """Run a command in a folder that has some wrong inputs; the work itself never begins."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRAFANA_TOKEN", "token")
    monkeypatch.setenv("COLUMNS", "300")
    (tmp_path / "empty.jsonl").write_text(json.dumps(EMPTY) + "\n")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))

    def run(*words):
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        assert sorted(tmp_path.rglob("*")) == before
        return done.exit_code, " ".join(done.output.replace("│", " ").split())

    return run


TRACE = ("--trace", "h200-a?limit=2")
MAKE = ("--arrivals", "poisson:rate=1", "--lengths", "long-context-8k")
FIT = ("--device", "h200", "--model", "llama3-8b", "-o", "p")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        # An empty trace, wherever one is read.
        (["trace", "stats", "empty.jsonl"], "empty.jsonl: has no requests"),
        (["replay", "empty.jsonl", "--url", NOWHERE], "empty.jsonl: has no requests"),
        (["simulate", "--trace", "empty.jsonl"], "empty.jsonl: has no requests"),
        (["tune", "--trace", "empty.jsonl"], "empty.jsonl: has no requests"),
        (["trace", "make", "-o", "t.jsonl", *MAKE, "--duration", "1e-9"], "nothing arrives within"),
        # Places that cannot be written to.
        (["tune", *TRACE, "--output", "/proc/x/t.parquet"], "/proc/x/t.parquet cannot be written"),
        (["tune", *TRACE, "--output", "binary/t.parquet"], "binary/t.parquet cannot be written"),
        (["tune", *TRACE, "--output", "folder"], "'--output'"),
        (["dashboard", "build", "--output", "/proc/x"], "/proc/x cannot be written"),
        (["dashboard", "build", "--output", "binary/x"], "binary/x cannot be written"),
        (["dashboard", "render", NOWHERE, "--output", "/proc/x"], "/proc/x cannot be written"),
        (["demo", "--output", "/proc/x"], "/proc/x cannot be written"),
        (["demo", "--output", "binary"], "'--output'"),
        (["simulate", *TRACE, "--output", "/proc/x"], "/proc/x cannot be written"),
        (["replay", "h200-a?limit=2", "--output", "/proc/x"], "/proc/x cannot be written"),
        (["report", "folder", "--html", "/proc/x/r.html"], "/proc/x/r.html cannot be written"),
        (["trace", "convert", "h200-a", "-o", "/proc/x"], "/proc/x cannot be written"),
        (["trace", "stats", "h200-a", "--plot", "/proc/x.png"], "/proc/x.png cannot be written"),
        (["profile", "show", "h200", "llama3-8b", "--save", "/proc/x"], "/proc/x cannot be"),
        (["profile", "show", "h200", "llama3-8b", "--plot", "a.xls"], "must end in .png"),
        # Options are called what was typed.
        (["simulate", *TRACE, "--kv-tokens", "-5"], "Invalid value for '--kv-tokens'"),
        (["simulate", *TRACE, "--kv-tokens", "500"], "--kv-tokens is 500"),
        (["simulate", *TRACE, "--page-size", "0"], "Invalid value for '--page-size'"),
        (["simulate", *TRACE, "--hicache-ratio", "nan"], "Invalid value for '--hicache-ratio'"),
        (["simulate", *TRACE, "--hicache-ratio", "-1"], "Invalid value for '--hicache-ratio'"),
        (["simulate", *TRACE, "--replicas", "0"], "Invalid value for '--replicas'"),
        (["simulate", *TRACE, "--sample", "2"], "--sample: share is 2.0"),
        (["simulate", *TRACE, "--window", "0:-1"], "--window: duration is -1.0"),
        (["simulate", *TRACE, "--limit", "0"], "Invalid value for '--limit'"),
        (["simulate", *TRACE, "--rate", "fast"], "--rate: rates 'fast' cannot be read"),
        (["simulate", *TRACE, "--ttft-slo", "nan"], "Invalid value for '--ttft-slo'"),
        (["simulate", *TRACE, "--ttft-slo", "1e300"], "Invalid value for '--ttft-slo'"),
        (["simulate", *TRACE, "--page-size", "100000"], "Invalid value for '--page-size'"),
        (["tune", *TRACE, "--trials", "1"], "Invalid value for '--trials'"),
        (["tune", *TRACE, "--objective", "speed"], "Invalid value for '--objective'"),
        (["report", "folder", "--resamples", "1"], "Invalid value for '--resamples'"),
        (["report", "folder", "--ttft-slo", "0"], "Invalid value for '--ttft-slo'"),
        (["report", "folder", "--tbt-rule", "p98"], "Invalid value for '--tbt-rule'"),
        (["top", NOWHERE, "--interval", "nan"], "Invalid value for '--interval'"),
        (["top", "127.0.0.1"], "'127.0.0.1' is no URL of a server"),
        (["doctor", "--live", "ftp://x"], "'ftp://x' is no URL of a server"),
        (["dashboard", "import", "x"], "'x' is no URL of a server"),
        (["serve-emulated", "--time-dilation", "-1"], "--time-dilation is '-1'; allowed is auto"),
        (["serve-emulated", "--time-dilation", "nan"], "--time-dilation is 'nan'; allowed is auto"),
        (["serve-emulated", "--profile", "binary"], "binary"),
        (["serve-emulated", "--device", "rtx9090"], "Invalid value for '--device'"),
        (["simulate", *TRACE, "--device", "rtx9090"], "Invalid value for '--device'"),
        (["simulate", *TRACE, "--profile", "binary"], "binary"),
        (["profile", "show", "rtx9090", "llama3-8b"], "Invalid value for"),
        # Inputs that are none.
        (["report", "folder"], "folder has no run: no run.json in it"),
        (["report", "binary"], "binary: is not UTF-8 text"),
        (["report", "nothing"], "nothing is not there"),
        (["explain", "binary"], "binary"),
        (["explain", "folder"], "folder"),
        (["explain", "nothing"], "nothing"),
        (["trace", "stats", "nothing.jsonl"], "nothing.jsonl"),
        (["trace", "stats", "native:binary"], "binary"),
        (
            ["profile", "fit", "binary", *FIT],
            "binary",
        ),
    ],
)
def test_bad_input_exits_with_2(invoke, words, sentence):
    code, said = invoke(*words)
    assert sentence in said
    assert code == 2


@pytest.mark.parametrize(
    "words",
    [
        ["replay", "h200-a?limit=1", "--rate", "20", "--url", NOWHERE],
        ["top", NOWHERE],
        ["doctor", "--live", NOWHERE],
        ["dashboard", "import", NOWHERE],
        ["dashboard", "render", NOWHERE],
    ],
)
def test_no_server_exits_with_1(invoke, words):
    code, said = invoke(*words)
    assert "Connection refused" in said and NOWHERE in said
    assert "ssl" not in said and "Errno" not in said
    assert code == 1


def test_every_choice_is_one_that_the_packages_know():
    from tokenflow_sgl.lab.replay.endpoints import ENDPOINTS
    from tokenflow_sgl.lab.report import overview
    from tokenflow_sgl.lab.sim.cluster import ROUTERS
    from tokenflow_sgl.lab.sim.study.tuning import OBJECTIVES

    for choice, known in (
        (choices.Api, ENDPOINTS),
        (choices.Router, ROUTERS),
        (choices.Objective, OBJECTIVES),
        (choices.TbtRule, overview._RULES),
    ):
        assert list(choice) == list(known)


@pytest.mark.parametrize(
    ("command", "listed"),
    [
        (["simulate"], ["least-loaded", "write_back", "rtx4090", "qwen3-8b"]),
        (["simulate"], ["auto", "shared", "best_effort", "qwen3-30b-a3b"]),
        (["simulate"], ["fcfs", "vtc", "round-robin", "andes", "package.module:Class"]),
        (["tune"], ["p99-ttft", "effective", "h200"]),
        (["report"], ["p99", "mean", "every"]),
        (["serve-emulated"], ["rtx4090", "qwen2.5-32b"]),
        (["profile", "show"], ["a6000", "llama3-70b"]),
    ],
)
def test_help_lists_closed_choices(command, listed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = CliRunner().invoke(app, [*command, "--help"]).output
    for name in listed:
        assert name in shown


def test_help_of_simulate_names_every_policy():
    from tokenflow_sgl.cli.simulate import simulate
    from tokenflow_sgl.lab.sim.schedulers.by_name import POLICIES

    hint = inspect.signature(simulate).parameters["policy"].annotation
    (option,) = (each for each in hint.__metadata__ if isinstance(each, typer.models.OptionInfo))
    assert ", ".join(POLICIES) in option.help


@pytest.mark.long
def test_simulate_and_report_agree_on_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["simulate", "--trace", "4090-a?limit=3", "--policy", "tokenflow,fcfs"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    told = "tokenflow report simulate-results/4090-a-1/tokenflow simulate-results/4090-a-1/fcfs"
    assert told in said
    both = CliRunner().invoke(app, [*told.split()[1:], "--json"])
    assert json.loads(both.stdout)["baseline"] == "tokenflow"
    whole = CliRunner().invoke(app, ["report", "simulate-results/4090-a-1", "--json"])
    assert whole.exit_code == 0, whole.output
    assert json.loads(whole.stdout)["baseline"] == "fcfs"
    assert "fcfs, tokenflow" in whole.stderr
    assert Path("simulate-results/4090-a-1/report.html").exists()
