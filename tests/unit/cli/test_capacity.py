"""``tokenflow capacity``: its table, sentences and files, over made-up runs and over real ones."""

from __future__ import annotations

import json
import random

import pytest
from made_runs.settings import write_spoken
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.cli.failing import Exit
from tokenflow_sgl.lab.sim.study.capacity_search import SearchedRun
from tokenflow_sgl.lab.traces import Accounting, Trace, TraceRequest, write_native
from tokenflow_sgl.qos.classes import QosClass

TRACE = ("--trace", "4090-c?duration=10")


@pytest.fixture
def command(in_this_process):
    """The command in an empty folder, in this process."""

    def run(*words: str):
        return CliRunner().invoke(app, ["capacity", *words], env={"COLUMNS": "200"})

    return run


@pytest.fixture
def carrying(command, monkeypatch):
    """The command where each policy carries a given multiple of the trace's rate."""

    def run(edges: dict[str, float], *words: str):
        def made(setup, job):
            policy, speed, draw = job
            streams = len(setup.traces[draw].requests)
            return SearchedRun(streams if speed <= edges[policy] else 0, streams)

        monkeypatch.setattr("tokenflow_sgl.lab.sim.study.capacity_search.run_of", made)
        return command(*TRACE, "--policy", ",".join(edges), *words)

    return run


def test_what_is_carried_is_said_drawn_and_written(carrying, tmp_path) -> None:
    done = carrying({"fcfs": 1.0, "tokenflow": 4.0})
    assert done.exit_code == 0, done.output
    said = [line for line in done.stdout.splitlines() if "carries" in line]
    assert len(said) == 1
    assert said[0].endswith(": the same experience on 75% fewer GPUs.")
    assert "unknown lengths: 99% with ttft<=2,stall<=0.5" in done.stdout
    folder = tmp_path / "capacity-results" / "4090-c-1"
    assert (folder / "capacity.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads((folder / "capacity.json").read_text())
    assert (found["share"], found["goal"]) == (0.99, {"ttft": 2.0, "stall": 0.5})
    assert found["known_lengths"] is False
    fcfs, ours = found["policies"]
    assert ours["streams_per_second"] == pytest.approx(4 * fcfs["streams_per_second"], rel=0.03)
    assert all(0.0 <= tried["share"] <= 1.0 for tried in fcfs["tried"])


def test_more_gpus_are_said_too(carrying) -> None:
    done = carrying({"fcfs": 2.0, "tokenflow": 1.0}, "--known-lengths", "--output", "here")
    assert "the same experience on 100% more GPUs." in done.stdout
    assert ", known lengths: 99%" in done.stdout


def test_one_that_carries_nothing_is_said(carrying) -> None:
    done = carrying({"fcfs": 0.0, "tokenflow": 1.0})
    assert done.exit_code == 0
    assert "streams/s, fcfs none." in done.stdout


def test_no_policy_at_any_rate_is_a_no(carrying, tmp_path) -> None:
    done = carrying({"fcfs": 0.0, "tokenflow": 0.0})
    assert done.exit_code == Exit.failed
    assert (
        "No policy meets ttft<=2,stall<=0.5 for 99% of the streams at the lowest rates"
        in done.stderr
    )
    assert (tmp_path / "capacity-results" / "4090-c-1" / "capacity.json").exists()


def test_what_carries_any_rate_is_said(carrying) -> None:
    done = carrying({"fcfs": 1e9})
    assert "fcfs meets the goal at the fastest rate that is tried." in done.stdout


def test_a_trace_that_is_too_short_for_a_rate_is_said(carrying) -> None:
    # 2,048 tokens at 20 a second take 100 s.
    done = carrying({"fcfs": 1.0})
    assert "so no load lasts and the rates found are too high: take a longer trace." in done.stdout
    done = carrying({"fcfs": 1.0}, "--trace", "4090-c?duration=400")
    assert "no load lasts" not in done.stdout


def test_draws_are_other_seeds(carrying, tmp_path) -> None:
    done = carrying({"fcfs": 1.0}, "--draws", "3")
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "capacity-results" / "4090-c-1" / "capacity.json").read_text())
    assert found["draws"] == 3
    assert found["streams"] > 2 * 10


def test_classes_of_a_file_are_those_of_the_server(command, monkeypatch, tmp_path) -> None:
    """Known to the trace, which has their rates, and to each run."""
    seen = []

    def made(setup, job):
        seen.append((setup.classes.known["voice"], setup.traces[0].requests[0].rate))
        return SearchedRun(1, 1)

    monkeypatch.setattr("tokenflow_sgl.lab.sim.study.capacity_search.run_of", made)
    write_spoken(tmp_path / "day.jsonl", "4090-c?limit=4")
    (tmp_path / "own.toml").write_text("[classes.voice]\nrate = 7\nweight = 2\n")
    words = ("--trace", "day.jsonl", "--policy", "fcfs")
    done = command(*words, "--classes", "own.toml")
    assert done.exit_code == 0, done.output
    assert seen[0] == (QosClass("voice", 7.0, weight=2.0), 7.0)
    without = command(*words)
    assert without.exit_code == Exit.usage
    assert "known classes are agent, listening, reading" in " ".join(without.stderr.split())


def test_the_server_is_as_the_options_say(carrying, tmp_path) -> None:
    words = ("--kv-tokens", "5000", "--hicache-ratio", "3", "--page-size", "16", "--output", "here")
    done = carrying({"fcfs": 1.0}, *words, "--device", "rtx4090")
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "here" / "capacity.json").read_text())
    server = found["server_args"]
    assert found["device"] == "rtx4090"
    assert (server["max_total_tokens"], server["host_tokens"], server["page_size"]) == (
        *(5000, 15000),
        16,
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--classes", "missing.toml"], "file 'missing.toml' does not exist"),
        (["--goal", "speed<=2"], "goal has 'speed<=2'; allowed is METRIC<=SECONDS"),
        (["--goal", "ttft<="], "goal has ttft<=; allowed is a number of seconds"),
        (["--share", "0"], "share is 0.0; allowed is a number above 0 and at most 1"),
        (["--share", "nan"], "Invalid value for '--share'"),
        (["--policy", "fastest"], "policy is 'fastest'"),
        (["--trace", "4090-a"], "4090-a arrives all at once, so it has no rate"),
        (["--trace", "missing.jsonl"], "missing.jsonl"),
        (["--trace", "day.jsonl", "--draws", "2"], "draws is 2; allowed for a file is 1"),
    ],
)
def test_what_is_wrong_is_said_before_the_work(command, tmp_path, words, sentence) -> None:
    done = command(*TRACE, *words)
    assert done.exit_code == Exit.usage
    assert sentence in " ".join(done.stderr.replace("│", " ").split())
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_the_command_with_real_runs(command, tmp_path) -> None:
    rng = random.Random(1)
    requests = tuple(
        TraceRequest(number / 2, 100, rng.randrange(60, 240), 20.0, limit_tokens=400)
        for number in range(40)
    )
    write_native(tmp_path / "short.jsonl", Trace("short", requests, Accounting(40, 40)))
    done = command(
        *("--trace", "short.jsonl", "--device", "rtx4090", "--kv-tokens", "3000"),
        *("--hicache-ratio", "8", "--share", "0.9", "--output", "here"),
    )
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "here" / "capacity.json").read_text())
    for each in found["policies"]:
        shares = {tried["streams_per_second"]: tried["share"] for tried in each["tried"]}
        below = [share for rate, share in shares.items() if rate <= each["streams_per_second"]]
        assert below and all(share >= 0.9 for share in below)
        assert min(shares.values()) < 0.9


def test_each_rate_is_a_line_where_no_one_watches(carrying) -> None:
    done = carrying({"fcfs": 1.0, "tokenflow": 4.0})
    lines = [line for line in done.stderr.splitlines() if "rates tried, between" in line]
    assert lines[0].startswith("fcfs: 1 rates tried, between ")
    assert any(line.startswith("tokenflow: 4 rates tried") for line in lines)
    assert all("\x1b" not in line and line.endswith(" s") for line in lines)
    assert done.stderr.startswith("searching the rate that fcfs, tokenflow carry ...\n")
    assert "rates tried, between" not in done.stdout


@pytest.mark.parametrize("whole", [True, False])
def test_runs_that_fail_are_ended_early_unless_they_are_to_be_whole(
    command, monkeypatch, tmp_path, whole
) -> None:
    seen = set()

    def made(setup, job):
        seen.add(setup.whole)
        return SearchedRun(5 if job[1] > 1.0 else 10, 10, whole=setup.whole or job[1] <= 1.0)

    monkeypatch.setattr("tokenflow_sgl.lab.sim.study.capacity_search.run_of", made)
    done = command(*TRACE, "--policy", "fcfs", "--output", "here", *(["--whole"] if whole else []))
    assert done.exit_code == 0, done.output
    assert seen == {whole}
    found = json.loads((tmp_path / "here" / "capacity.json").read_text())
    tried = {each["share"]: each["whole"] for each in found["policies"][0]["tried"]}
    assert tried == {1.0: True, 0.5: whole}
