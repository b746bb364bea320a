"""Sweeps as a user runs them: options, files, what is said, exit codes, and reports of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.lab.report.load_sweep import read_sweep
from tokenflow_sgl.lab.traces import write_native

pytestmark = pytest.mark.long

TOO_BUSY = "the client's machine is too slow or too busy"
NOWHERE = ("--url", "http://127.0.0.1:9")


@pytest.fixture
def trace_file(ask, trace_of, tmp_path, monkeypatch):
    """A trace of twelve requests, in the folder that commands run in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    write_native(tmp_path / "t.jsonl", trace_of(*(ask(output=4) for _ in range(12))))
    return "t.jsonl"


def tokenflow(*words):
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def spoken(done):
    return " ".join(done.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--concurrency", "1,8", "--rate-sweep", "2"),
            "--concurrency 1,8 and --rate-sweep 2 exclude each other: give one of them",
        ),
        (("--concurrency", "0"), "--concurrency is '0'; allowed are whole numbers of at least 1"),
        (("--concurrency", "many"), "--concurrency is 'many'; allowed are whole numbers"),
        (("--concurrency", "1,,2"), "--concurrency is '1,,2'; allowed"),
        (("--concurrency", "1.5"), "--concurrency is '1.5'; allowed"),
        (("--concurrency", "2,2"), "--concurrency is '2,2'; allowed are whole numbers"),
        (("--concurrency", ""), "--concurrency is ''; allowed"),
        (("--rate-sweep", "0"), "--rate-sweep is '0'; allowed are requests per second from 1e-06"),
        (("--rate-sweep", "fast"), "--rate-sweep is 'fast'; allowed"),
        (("--rate-sweep", "nan"), "--rate-sweep is 'nan'; allowed"),
        (("--rate-sweep", "1,1.0"), "--rate-sweep is '1,1.0'; allowed are"),
        (("--concurrency", "12"), "--concurrency is 12; allowed is less than the requests that"),
        (("--concurrency", "8", "--warm-up", "5"), "that count, which are 7 of small"),
        (("--concurrency", "2", "--goal", "speed<=1"), "goal has 'speed<=1'; allowed is METRIC"),
        (("--concurrency", "2", "--speed-up", "2"), "--speed-up 2 changes times that a sweep"),
        (("--concurrency", "2", "--repeat", "0"), "for '--repeat'"),
        (("--concurrency", "2", "--gpus", "0"), "for '--gpus'"),
        (("--repeat", "3"), "--repeat 3 is for a sweep: give --concurrency or --rate-sweep, too"),
        (("--goal", "ttft<=1"), "--goal ttft<=1 is for a sweep"),
        (("--gpus", "2"), "--gpus 2 is for a sweep"),
        (("--concurrency", "2", "--output", "."), ". exists: a run is never written over another"),
    ],
)
def test_bad_options_are_named(trace_file, tmp_path, options, words):
    done = tokenflow("replay", trace_file, *NOWHERE, *options)
    assert done.exit_code == 2, done.output
    assert words in spoken(done)
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]


def test_no_server_no_sweep(trace_file, tmp_path):
    done = tokenflow("replay", trace_file, *NOWHERE, "--concurrency", "2")
    assert done.exit_code == 1
    assert "No replay: no server answers at http://127.0.0.1:9" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]


def swept(trace_file, url, *options):
    """Sweep; a busy machine may make valid runs invalid, only for being late."""
    done = tokenflow("replay", trace_file, "--url", url, "--known-lengths", *options)
    reasons = [line for line in done.output.splitlines() if line.startswith("INVALID: ")]
    if done.exit_code == 3 and all(TOO_BUSY in each for each in reasons):
        return 0, done.output
    return done.exit_code, done.output


def test_sweeps_are_written_and_reported(trace_file, stub_process, tmp_path):
    goals = ("--goal", "ttft<=2,stall<=0.5", "--goal", "e2e<=60")
    with stub_process(server_info={"tp_size": 2}) as url:
        code, text = swept(trace_file, url, "--concurrency", "1,4", "--name", "stock", *goals)
        rates = ("--rate-sweep", "20,40", "--repeat", "2", "--gpus", "3", "--output", "here")
        again, repeated = swept(trace_file, url, *rates)
    assert (code, again) == (0, 0), text + repeated
    folder = tmp_path / "replay-results/stock-sweep-1"
    files = ["concurrency-1", "concurrency-4", "pareto.png", "sweep.csv", "sweep.json"]
    assert sorted(path.name for path in folder.iterdir()) == files
    assert read_sweep(folder).goals == goals[1::2]
    assert "Goodput: requests/s" in text and "Written to replay-results/stock-sweep-1/" in text
    assert "±" not in text, "one repeat has no interval"
    assert "±" in repeated and "rate 40/s, 2 of 2 ..." in repeated
    assert read_sweep(tmp_path / "here").gpus == 3

    both = tokenflow("report", folder, "here", "--plot", "both.png")
    assert both.exit_code == 0, both.output
    assert "at once" in both.output and "rate/s" in both.output
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    shown = json.loads(tokenflow("report", folder, folder, "--json").stdout)
    assert [each["name"] for each in shown["sweeps"]] == ["stock (stock-sweep-1)"] * 2
    assert json.loads(tokenflow("report", folder, "--json").stdout)["gpus"] == 2
    assert tokenflow("report", folder / "concurrency-4").exit_code == 0
    for words, said in (
        ((folder, "--html", "x.html"), "--html is for runs, and"),
        ((folder, "--markdown"), "--markdown is for runs, and"),
        ((folder, folder / "concurrency-4"), "is a sweep and"),
        ((folder / "concurrency-4", "--plot", "x.png"), "--plot x.png is for sweeps, and"),
    ):
        refused = tokenflow("report", *words)
        assert refused.exit_code == 2
        assert said in spoken(refused)


def test_an_invalid_point_is_said_first(trace_file, stub_process):
    with stub_process(failures={number: "500" for number in range(12, 16)}) as url:
        code, text = swept(trace_file, url, "--concurrency", "1,2")
    assert code == 3
    verdicts = text[text.rindex(" ...\n") :].splitlines()
    reason = "INVALID: concurrency 2: Only 8 of 12 requests were served (allowed: 90%)"
    assert any(line.startswith(reason) for line in verdicts[2:6]), text
    assert "The sweep is not valid as a whole" in text


def test_ctrl_c_ends_the_sweep_and_writes_what_came(trace_file, stub_process, tmp_path):
    words = ("replay", trace_file, "--known-lengths", "--concurrency", "2,1", "--output", "s")
    program = f"import sys; from tokenflow_sgl.cli import main; sys.argv[1:] = {words!r}"
    with stub_process(gap_s=0.2) as url:
        process = subprocess.Popen(
            [sys.executable, "-c", f"{program} + ('--url', {url!r}); main()"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            seen = ""
            while "concurrency 1 ..." not in seen:
                line = process.stdout.readline()
                assert line, seen
                seen += line
            process.send_signal(signal.SIGINT)
            text, _ = process.communicate(timeout=240)
        finally:
            process.kill()
            process.communicate()
    assert process.returncode == 130, seen + text
    assert "Stopping the sweep." in text and "Not whole: interrupted in run 2 of 2." in text
    found = read_sweep(tmp_path / "s")
    assert found.interrupted
    assert found.points[0].state in ("", "INVALID") and found.points[1].interrupted
