"""``tokenflow tune``: what it recommends, over made-up runs and over real ones."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow.parquet as pq
import pytest
from made_runs.settings import row, write_spoken
from rich.console import Console
from typer.testing import CliRunner

from tokenflow_sgl.cli import chosen_engine
from tokenflow_sgl.cli.app import app
from tokenflow_sgl.engine.config import build
from tokenflow_sgl.lab.sim.study.tuning import SPACE
from tokenflow_sgl.lab.traces import Trace, open_trace
from tokenflow_sgl.policy import WorkingSetConfig


@pytest.fixture
def command(in_this_process, monkeypatch, tmp_path):
    """The command over made-up runs: `figures(trace, setting)` says how each is."""

    def run(figures: Callable[[Trace, dict], dict], *options: str):
        shipped = {name: getattr(WorkingSetConfig(), name) for name in SPACE}

        def made(setup, setting):
            run.setups.append(setup)
            return figures(setup.trace, {**shipped, **setting})

        for module in ("tuning", "held_out"):
            monkeypatch.setattr(f"tokenflow_sgl.lab.sim.study.{module}.row_of", made)

        done = CliRunner().invoke(
            app,
            ["tune", "--trials", "12", "--output", str(tmp_path / "runs.parquet"), *options],
            env={"COLUMNS": "200"},
        )
        assert done.exit_code == 0, done.output
        return done.stdout.rstrip().splitlines()

    run.setups = []
    return run


BURST = ("--trace", "4090-a?limit=20")


def test_what_is_good_only_where_it_was_searched_is_not_recommended(command) -> None:
    drawn = {tuple(request.prompt_tokens for request in open_trace(BURST[1]).requests)}

    def figures(trace: Trace, setting: dict) -> dict:
        waiting = row(setting)["mean_waiting_s"]
        known = tuple(request.prompt_tokens for request in trace.requests) in drawn
        return row(setting, mean_waiting_s=waiting if known else 3.0 - waiting)

    lines = command(figures, *BURST)
    assert lines[-2].startswith("Keep the defaults: held-out trace 1 of 2 gains -")
    assert lines[-1].startswith("(mean waiting, s, ratio to the defaults: 0.")
    assert "where it was searched, 1." in lines[-1]
    assert "recommended is what gains 3% on each trace that was held out" in lines[-1]
    assert not any("Parameters to use" in line for line in lines)
    titles = [line.strip() for line in lines if "held-out trace" in line and line[0] == " "]
    assert titles == [f"4090-a, 20 requests: held-out trace {number} of 2" for number in (1, 2)]


def test_what_is_good_everywhere_is_recommended_with_both_figures(command) -> None:
    lines = command(lambda _, setting: row(setting), *BURST)
    said = lines.index("Parameters to use, in a file for --tokenflow-tuning:")
    assert lines[said + 2] == "[policy]" and lines[said + 3].startswith("eta = 0.")
    assert "where it was searched, 0." in lines[-1]


def test_what_is_recommended_is_written_bit_by_bit(command, tmp_path) -> None:
    """A server and a simulation that are given the file have the very parameters of the search."""
    path = tmp_path / "new" / "own.toml"
    lines = command(lambda _, setting: row(setting), *BURST, "--save", str(path))
    assert lines[-2] == (
        f"Parameters to use, written to {path}: --scheduler tokenflow --tokenflow-tuning {path}"
    )
    found = chosen_engine.tuned_config(path, Console(stderr=True))
    runs = pq.read_table(tmp_path / "runs.parquet").to_pylist()
    best = min((run for run in runs if run["allowed"]), key=lambda run: run["mean_waiting_s"])
    assert {name: getattr(found, name) for name in SPACE} == {name: best[name] for name in SPACE}
    assert build({"tuning": str(path)}).working_set == found


def test_what_is_not_recommended_is_not_written(command, tmp_path) -> None:
    path = tmp_path / "own.toml"
    lines = command(lambda _, made: row(made, mean_waiting_s=1.0), *BURST, "--save", str(path))
    assert lines[-1].startswith("Keep the defaults") and not path.exists()


def test_less_than_the_margin_is_no_reason_to_change(command) -> None:
    def figures(_: Trace, setting: dict) -> dict:
        return row(setting, mean_waiting_s=1.0 + (row(setting)["mean_waiting_s"] - 1.0) / 50)

    lines = command(figures, *BURST)
    assert lines[-2].startswith("Keep the defaults: held-out trace 1 of 2 gains 0.")
    assert lines[-2].endswith("%, less than 3%.")


def test_what_makes_readers_wait_elsewhere_is_not_recommended(command) -> None:
    drawn = tuple(request.prompt_tokens for request in open_trace(BURST[1]).requests)

    def figures(trace: Trace, setting: dict) -> dict:
        known = tuple(request.prompt_tokens for request in trace.requests) == drawn
        changed = setting["eta"] != WorkingSetConfig().eta
        effective = 10.0 + 5 * changed
        waiting = 1.0 if known or not changed else 1.02
        return row(setting, effective_throughput=effective, mean_waiting_s=waiting)

    lines = command(figures, *BURST, "--objective", "effective")
    expected = "Keep the defaults: on held-out trace 1 of 2 readers wait longer on average."
    assert lines[-2] == expected


def test_nothing_better_keeps_the_defaults(command) -> None:
    lines = command(lambda _, setting: row(setting, mean_waiting_s=1.0), *BURST)
    assert lines[-1] == "Keep the defaults: nothing better was found in 12 runs."


def test_parameters_that_cost_effective_throughput_are_never_used(command) -> None:
    """As seen: the best of four runs made 0.873 times the effective tokens per second."""

    def figures(_: Trace, setting: dict) -> dict:
        shipped = setting["eta"] == WorkingSetConfig().eta
        return row(setting, effective_throughput=100.0 if shipped else 87.3)

    lines = command(figures, *BURST)
    assert lines[-1] == "Keep the defaults: nothing better was found in 12 runs."


def test_a_named_trace_is_what_is_held_out(command) -> None:
    lines = command(lambda _, setting: row(setting), *BURST, "--check", "4090-b?limit=5")
    held = [line.strip() for line in lines if "held-out trace" in line and line[0] == " "]
    assert held == ["4090-b, 5 requests: held-out trace 1 of 1"]


def test_a_file_is_searched_in_one_half_and_held_out_in_the_other(command, tmp_path) -> None:
    path = tmp_path / "day.jsonl"
    made = CliRunner().invoke(app, ["trace", "convert", "4090-c?limit=9", "--output", str(path)])
    assert made.exit_code == 0, made.output
    lines = command(lambda _, setting: row(setting), "--trace", str(path))
    titles = [line.strip() for line in lines if " requests" in line and line[0] == " "]
    assert "4 requests on " in titles[0] and titles[0].endswith(": searched")
    assert "5 requests: held-out trace 1 of 1" in titles[1]


@pytest.mark.parametrize("halves", [True, False])
def test_classes_of_a_file_are_those_of_the_server(command, tmp_path, halves) -> None:
    """Known to the traces, which have their rates, and to each run, what is held out included."""
    day, own = tmp_path / "day.jsonl", tmp_path / "own.toml"
    write_spoken(day, "4090-c?limit=4")
    own.write_text("[classes.voice]\nrate = 7\nweight = 2\n")
    words = ("--trace", str(day), "--classes", str(own))
    command(lambda _, setting: row(setting), *words, *(() if halves else ("--check", str(day))))
    assert len(command.setups) > 12, "and on what was held out"
    for setup in command.setups:
        assert setup.classes.known["voice"].weight == 2.0
        assert {request.rate for request in setup.trace.requests} == {7.0}


@pytest.mark.slow
def test_the_command_with_real_runs(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    done = CliRunner().invoke(
        app,
        [
            *("tune", "--trace", "4090-a", "--limit", "14", "--device", "rtx4090"),
            *("--kv-tokens", "9000", "--hicache-ratio", "8", "--trials", "9"),
            *("--check", "4090-b", "--output", str(tmp_path / "runs.parquet")),
        ],
    )
    assert done.exit_code == 0, done.output
    assert "mean waiting, s" in done.output
    runs = pq.read_table(tmp_path / "runs.parquet")
    assert runs.num_rows == 9
    if "nothing better" in done.output:
        assert "held-out trace" not in done.output
    else:
        assert ("Parameters to use, in a file" in done.output) != (
            "Keep the defaults: " in done.output
        )
        assert "4090-b, 14 requests: held-out trace 1 of 1" in done.output


def test_the_command_says_what_is_wrong() -> None:
    done = CliRunner().invoke(app, ["tune", "--trace", "4090-a", "--objective", "speed"])
    assert done.exit_code == 2
    assert "Invalid value for '--objective'" in done.output
