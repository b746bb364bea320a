"""The command as a user runs it: its own process, files, signals and exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from tokenflow_sgl.lab.runs import read_run

pytestmark = pytest.mark.long

TOO_BUSY = "the client's machine is too slow or too busy"
PROGRAM = "import typer; from tokenflow_sgl.cli.replay import replay; typer.run(replay)"


@pytest.fixture
def trace_file(ask, trace_of, tmp_path):
    from tokenflow_sgl.lab.traces import write_native

    def write(*requests):
        path = tmp_path / "readers.jsonl"
        write_native(path, trace_of(*requests))
        return path

    return write


@pytest.fixture
def command(tmp_path):
    """Start `tokenflow replay` in a folder of its own."""
    started = []

    def start(*arguments, known_lengths=True, **environment):
        # The stub's answers end at their limit only.
        known = ["--known-lengths"] if known_lengths else []
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *known, *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "200", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def output_of(process, code):
    """What the command says. A busy machine may make a valid run invalid, only for being late."""
    text, _ = process.communicate(timeout=240)
    reasons = [line for line in text.splitlines() if line.startswith("INVALID: ")]
    late = (
        process.returncode == 3 and bool(reasons) and all(TOO_BUSY in reason for reason in reasons)
    )
    assert process.returncode == code or (code == 0 and late), text
    return text


def test_a_run_is_written_and_summarised(ask, trace_file, command, stub_process, tmp_path):
    trace = trace_file(ask(output=4, rate=None), ask(0.1, output=6, rate=None))
    with stub_process(server_info={}) as url:
        texts = [
            output_of(command(trace, "--url", url, "--rate", "10/20", "--warm-up", "1"), 0)
            for _ in range(2)
        ]
        chosen = ("--ttft-slo", "2", "--limit", "1", "--speed-up", "2", "--name", "mine")
        output_of(command(trace, "--url", url, "--rate", "7", "--output", "here/run", *chosen), 0)
    for number, text in enumerate(texts, 1):
        assert "2 requests of small to tiny" in text
        assert "TTFT, P99" in text
        assert f"Written to replay-results/small-{number}/" in text
        assert f"tokenflow report replay-results/small-{number}" in text
    run = read_run(tmp_path / "replay-results/small-1")
    assert run.requests["output_tokens"].to_pylist() == [4, 6]
    assert run.requests["warm_up"].to_pylist() == [True, False]
    assert set(run.requests["rate"].to_pylist()) <= {10.0, 20.0}
    run = read_run(tmp_path / "here/run")
    assert run.info.name == "mine"
    assert run.requests["rate"].to_pylist() == [7.0]
    assert run.requests["ttft_slo_s"].to_pylist() == [2.0]
    assert any("2 times as fast" in note for note in run.info.trace["notes"])


def test_a_run_is_never_written_over_another(ask, trace_file, command, stub_process, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.json").write_text("{}")
    with stub_process() as url:
        text = output_of(command(trace_file(ask()), "--url", url, "--output", "run"), 2)
    assert "run exists: a run is never written over another" in text
    assert (tmp_path / "run/run.json").read_text() == "{}"


def test_no_server_no_run(ask, trace_file, command, tmp_path):
    text = output_of(command(trace_file(ask()), "--url", "http://127.0.0.1:9"), 1)
    assert "No replay: no server answers at http://127.0.0.1:9" in text
    assert [path.name for path in tmp_path.iterdir()] == ["readers.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--warm-up", "soon"), "--warm-up is 'soon'"),
        (("--warm-up", "-3"), "--warm-up is '-3'"),
        (("--window", "5"), "--window is '5'; allowed is START:SECONDS"),
        (("--token-ids", "a:b"), "--token-ids is 'a:b'; allowed is LO:HI"),
        (("--api-key-env", "NO_SUCH"), "NO_SUCH is not set"),
        (("--api", "soap"), "soap"),
    ],
)
def test_bad_options_are_named(ask, trace_file, command, arguments, words):
    text = output_of(command(trace_file(ask()), "--url", "http://127.0.0.1:9", *arguments), 2)
    assert words in " ".join(text.replace("│", " ").split())


def test_ignoring_eos_needs_known_lengths(ask, trace_file, command):
    started = command(trace_file(ask()), "--ignore-eos", known_lengths=False)
    text = " ".join(output_of(started, 2).split())
    assert "No replay: ignore_eos is given without known_lengths (--known-lengths)" in text


def test_the_key_is_nowhere(ask, trace_file, command, stub_process, tmp_path):
    with stub_process() as url:
        key = command(trace_file(ask()), "--url", url, "--api-key-env", "A_KEY", A_KEY="SECRET")
        assert "SECRET" not in output_of(key, 0)
    written = (tmp_path / "replay-results/small-1/run.json").read_text()
    assert "SECRET" not in written
    assert json.loads(written)["options"]["seed"] == 0


def wait_for(process, words):
    """Read the command's output until it has said so."""
    seen = ""
    while words not in seen:
        line = process.stdout.readline()
        assert line, seen
        seen += line


def wait_for_answers(url, *, ended, tokens):
    """Wait until the stub has written so much: what a client reads comes before a later signal."""
    end = time.monotonic() + 60.0
    while True:
        with urllib.request.urlopen(f"{url}/written", timeout=60) as response:
            written = json.load(response)
        if written["ended"] >= ended and written["tokens"] >= tokens:
            return
        assert time.monotonic() < end, written
        time.sleep(0.05)


def test_ctrl_c_ends_the_replay_and_writes_what_came(
    ask, trace_file, command, stub_process, tmp_path
):
    trace = trace_file(ask(output=3), ask(output=100_000), ask(3600.0))
    with stub_process() as url:
        process = command(trace, "--url", url, PYTHONUNBUFFERED="1")
        wait_for(process, "3 requests of small")
        wait_for_answers(url, ended=1, tokens=100)
        process.send_signal(signal.SIGINT)
        text = output_of(process, 130)
    assert "Stopping." in text
    assert "Interrupted" in text
    run = read_run(tmp_path / "replay-results/small-1")
    assert run.info.interrupted
    assert run.requests["finish_reason"].to_pylist() == ["length", None, None]
    assert run.requests["sent_s"].is_valid().to_pylist() == [True, True, False]
    assert run.tokens.num_rows > 10


def test_ctrl_c_in_the_warm_up_burst_is_an_interruption(
    ask, trace_file, command, stub_process, tmp_path
):
    trace = trace_file(ask(output=100_000), ask(3600.0))
    with stub_process(gap_s=1.0) as url:
        options = ("--warm-up-burst", "1")
        process = command(trace, "--url", url, *options, PYTHONUNBUFFERED="1")
        wait_for(process, "2 requests of small")
        wait_for_answers(url, ended=0, tokens=1)
        process.send_signal(signal.SIGINT)
        text = output_of(process, 130)
    assert "No replay: stopped in the warm-up burst: nothing was measured." in text
    assert not list(tmp_path.glob("replay-results/*"))


def test_an_invalid_run_is_said_aloud(ask, trace_file, command, stub_process, tmp_path):
    device = {"time_dilation": 1.0, "steps": 0, "late_steps": 0}
    info = {"internal_states": [{"emulated_device": device}]}
    with stub_process(server_info=info, steps_per_request=10, late_per_request=5) as url:
        text = output_of(command(trace_file(ask()), "--url", url), 3)
    assert "INVALID: The emulated device was late in 5 of 10 steps" in text
    assert read_run(tmp_path / "replay-results/small-1").info.invalid


@pytest.mark.parametrize(
    ("rate", "arguments"), [(None, ("--rate", "5000")), (0.05, ()), (5000.0, ())]
)
def test_rates_that_servers_refuse_are_not_sent(
    ask, trace_file, command, rate, arguments, tmp_path
):
    """Before the server is looked for: the same sentence with none there."""
    text = output_of(
        command(trace_file(ask(rate=rate)), "--url", "http://127.0.0.1:9", *arguments), 2
    )
    refused = 5000 if rate is None else rate
    assert f"is read at {refused:g} tokens/s; servers take 0.1 to 1000" in text
    assert "--rate" in text and "--no-send-rates" in text
    assert [path.name for path in tmp_path.iterdir()] == ["readers.jsonl"]


def test_rates_that_are_not_sent_may_be_any(ask, trace_file, command, stub_process):
    with stub_process() as url:
        output_of(command(trace_file(ask(rate=5000.0)), "--url", url, "--no-send-rates"), 0)


@pytest.mark.parametrize(("total", "code"), [(True, 0), (False, 3)])
def test_several_tokens_per_chunk_are_shared_out_or_the_run_is_invalid(
    ask, trace_file, command, stub_process, tmp_path, total, code
):
    behaviour = {"usage": False, "final_usage": total, "tokens_per_chunk": 4}
    with stub_process(**behaviour) as url:
        ran = command(trace_file(ask(output=40)), "--url", url, "--api", "chat")
        text = output_of(ran, code)
    run = read_run(tmp_path / "replay-results/small-1")
    if total:
        assert run.tokens.num_rows == 40
        assert "40 tokens were shared among 10 chunks by their text" in text
    else:
        assert any("did not say how many tokens" in reason for reason in run.info.invalid)
        assert "INVALID: The server did not say how many tokens 1 of 1 answers have" in text


@pytest.mark.parametrize(
    ("failures", "requests", "code", "verdict"),
    [
        ({0: "400"}, 1, 3, "None of 1 requests was served, most often for: HTTP 400"),
        ({0: "500", 1: "500"}, 10, 3, "Only 8 of 10 requests were served (allowed: 90%), most"),
        ({0: "500"}, 10, 0, None),
    ],
)
def test_a_run_that_served_too_little_is_invalid_and_says_so_first(
    ask, trace_file, command, stub_process, tmp_path, failures, requests, code, verdict
):
    trace = trace_file(*(ask(0.05 * number) for number in range(requests)))
    with stub_process(failures=failures) as url:
        text = output_of(command(trace, "--url", url), code)
    started, first, *_ = text.splitlines()
    assert started.startswith(f"{requests} requests of small")
    assert first.startswith(f"INVALID: {verdict}") is (code == 3)
    run = read_run(tmp_path / "replay-results/small-1")
    reasons = [each for each in run.info.invalid if TOO_BUSY not in each]
    assert len(reasons) == (code == 3)


def test_a_missing_module_is_named(monkeypatch):
    import importlib

    from typer.testing import CliRunner

    module = importlib.import_module("tokenflow_sgl.cli.replay")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    import typer

    app = typer.Typer()
    app.command()(module.replay)
    result = CliRunner().invoke(app, ["trace"])
    assert result.exit_code == 2
    packages = "'aiohttp>=3.10' 'pyarrow>=15'"
    assert result.output == f"A replay needs aiohttp, pyarrow: pip install {packages}\n"
