"""`tokenflow plan`, as a user types it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.cli.plan_output import named

A5000 = ("--device", "a5000", "--kv-tokens", "16384", "--link-gb", "12")


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*words: str):
        return CliRunner().invoke(app, ["plan", *words], env={"COLUMNS": "200"})

    return run


@pytest.mark.long
def test_a_table_sentences_and_a_picture(invoke, tmp_path) -> None:
    done = invoke("12000", "6000", "2000", *A5000, "--plot", "new/plan.png")
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.stdout.splitlines() if line.strip()[:1].isdigit()]
    assert [row[1] for row in rows] == ["12,000", "6,000", "2,000"]
    assert "A decode step takes" in done.stdout and "of stalls" in done.stdout
    assert "It lasts for" in done.stdout
    assert done.stdout.count("Without stalls: with") == 2
    assert "With one more stream of mean length" in done.stdout
    assert (tmp_path / "new" / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_json_has_the_plan_and_its_timeline(invoke) -> None:
    done = invoke("14000", "10000", *A5000, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["device"], found["kv_tokens"], found["page_size"]) == ("a5000", 16384, 16)
    assert found["used_kv_tokens"] <= 16384
    step, streams = found["step"], found["streams"]
    assert step["seconds"] == pytest.approx(step["computing_s"] + step["stalled_s"])
    assert step["stalled_s"] == pytest.approx(sum(each["stall_s"] for each in step["layers"]))
    assert step["bound_s"] <= step["seconds"]
    copied = {(each["stream"], each["layer"]) for each in step["copies"]}
    assert copied == {
        (number, layer)
        for number, stream in enumerate(streams, 1)
        for layer in stream["layers_on_host"]
    }
    seconds = sum(end - begin for each in step["copies"] for begin, end in each["pieces_s"])
    tokens = sum(  # of the end of 16 steps, in whole pages
        -(-(stream["tokens"] + 16) // 16) * 16 * len(stream["layers_on_host"]) / 32
        for stream in streams
    )
    assert seconds == pytest.approx(tokens * 131072 / 12e9)
    assert found["without_stalls"]["kv_tokens"] > 16384


def test_a_group_of_devices_shares_the_streams(invoke) -> None:
    # A device's share of a stream is a half; so are its memory and its link of the group's.
    group = ("--device", "a6000x2", "--kv-tokens", "16384")
    done = invoke("14000", "10000", *group, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["used_kv_tokens"] <= 16384
    seconds = sum(
        end - begun for each in found["step"]["copies"] for begun, end in each["pieces_s"]
    )
    tokens = sum(
        -(-(stream["tokens"] + 16) // 16) * 16 * len(stream["layers_on_host"]) / 32
        for stream in found["streams"]
    )
    assert seconds == pytest.approx(tokens * 131072 / 50e9)  # two links of 25 GB/s


def test_what_fits_is_not_offloaded(invoke) -> None:
    done = invoke("1000", "2000", *A5000)
    assert done.exit_code == 0, done.output
    assert "0.0 ms of stalls" in done.stdout
    assert "Without stalls" not in done.stdout


def test_an_objective_pauses_the_longest_stream(invoke) -> None:
    done = invoke("14000", "6000", *A5000, "--tbt-slo", "0.04", "--json")
    found = json.loads(done.stdout)
    assert [each["paused"] for each in found["streams"]] == ["objective", None]
    assert found["step"]["seconds"] <= 0.04


def test_scipys_program_finds_the_same_step(invoke) -> None:
    words = ("12000", "6000", *A5000, "--json")
    ours, theirs = (
        json.loads(invoke(*words, *more).stdout)["step"]["seconds"]
        for more in ((), ("--solver", "milp"))
    )
    assert ours == pytest.approx(theirs, rel=2e-4)


def test_a_buffer_for_each_stream_leaves_less_memory(invoke) -> None:
    words = ("9000", "8000", "7000", *A5000, "--json")
    layer, stream = (
        json.loads(invoke(*words, "--staging", rule).stdout)["step"]["seconds"]
        for rule in ("layer", "stream")
    )
    assert layer < stream


def test_no_stream_that_runs_or_keeps_the_objective_is_a_failure(invoke, tmp_path) -> None:
    done = invoke("9000", *A5000, "--tbt-slo", "0.001", "--plot", "plan.png")
    assert done.exit_code == 1
    assert "That is longer than 1.0 ms, which no stream keeps even alone" in done.stdout
    assert "No stream keeps the objective, even alone." in done.output
    assert not (tmp_path / "plan.png").exists()
    small = invoke("9000", *A5000[:2], "--kv-tokens", "64", "--plot", "plan.png")
    assert small.exit_code == 1
    assert "for memory" in small.stdout
    assert "No stream runs: none fits the memory." in small.output
    assert not (tmp_path / "plan.png").exists()


def test_what_pauses_makes_the_step_of_the_others_shorter(invoke) -> None:
    # Thirteen streams compute for 30.1 ms, eleven for 29.5.
    words = (*["1500"] * 13, "--device", "a5000", "--kv-tokens", "16384", "--link-gb", "12")
    done = invoke(*words, "--tbt-slo", "0.0295", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert {each["paused"] for each in found["streams"]} == {None, "objective"}
    step = found["step"]
    assert step["seconds"] <= 0.0295
    # The timeline is that of the streams that run.
    assert step["seconds"] == pytest.approx(step["computing_s"] + step["stalled_s"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["5", "0"], "No plan: tokens is '0'; allowed are whole numbers from 1 to 100000000."),
        (["many"], "No plan: tokens is 'many'; allowed are whole numbers from 1"),
        (["5"] * 257, "No plan: tokens has 257 streams; allowed are at most 256."),
        (["5", "--device", "rtx9090"], "Invalid value for '--device'"),
        (["5", "--link-gb", "0"], "Invalid value for '--link-gb'"),
        (["5", "--tbt-slo", "nan"], "Invalid value for '--tbt-slo'"),
        (["5", "--staging", "none"], "Invalid value for '--staging'"),
        (["5", "--solver", "gurobi"], "Invalid value for '--solver'"),
        (["5", "--ahead", "-1"], "Invalid value for '--ahead'"),
        (["5", "--plot", "plan.txt"], "its name must end in .png, .svg or .pdf"),
        (["5", "--device", "a5000", "--model", "llama3-70b"], "does not fit on a5000"),
    ],
)
def test_bad_input_is_one_sentence(invoke, words, message) -> None:
    done = invoke(*words)
    assert done.exit_code == 2
    assert message in " ".join(done.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ((), ""),
        ((8, 16), "8, 16"),
        ((1, 2, 3, 4), "all"),
        ((2, 4, 6, 8), "every 2nd from 2"),
        ((3, 6, 9, 12), "every 3rd from 3"),
        ((4, 12, 20, 28), "every 8th from 4"),
        ((6, 12, 19, 25), "6, 12, 19, 25"),
    ],
)
def test_layers_are_named_in_few_words(layout, words) -> None:
    assert named(layout) == words
