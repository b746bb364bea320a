from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from tokenflow_sgl.cli.trace import trace_app
from tokenflow_sgl.lab.traces import open_trace
from tokenflow_sgl.lab.traces.generators.arrivals import ARRIVALS
from tokenflow_sgl.lab.traces.generators.mixes import MIXES
from tokenflow_sgl.lab.traces.generators.priority_changes import PRIORITIES
from tokenflow_sgl.lab.traces.generators.request_lengths import LENGTHS
from tokenflow_sgl.lab.traces.generators.sessions import SessionConfig
from tokenflow_sgl.lab.traces.parameters import parameter_names

trace_command = importlib.import_module("tokenflow_sgl.cli.trace")

MAKE = (
    "make",
    *("--arrivals", "gamma:rate=3,cv=2"),
    *("--prompts", "normal:mean=100"),
    *("--outputs", "fixed:tokens=20"),
    *("--requests", "40"),
)


def run(*args):
    return CliRunner().invoke(trace_app, [str(arg) for arg in args])


def test_stats_as_tables():
    result = run("stats", "h200-a")
    assert result.exit_code == 0, result.output
    for words in ("h200-a", "TokenFlow Table 1", "400", "peak reading", "8,000", "tokens/s"):
        assert words in result.output


def test_stats_as_json(tmp_path):
    path = tmp_path / "file.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 00:00:00,5,0\n2023-11-16 00:00:01,5,7\n"
    )
    result = run("stats", f"azure:{path}", "--json")
    answer = json.loads(result.output)
    assert answer["accounting"] == {"rows": 2, "emitted": 1, "dropped": {"no output tokens": 1}}
    assert answer["stats"]["output_tokens"]["p99"] == 7
    assert answer["stats"]["arrivals_per_s"] is None
    assert "dropped: no output tokens" in run("stats", f"azure:{path}").output


def test_what_a_file_says_is_not_taken_for_markup(tmp_path):
    path = tmp_path / "file.csv"
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    path.write_text(f"{header}\n1,[red],1,1,2,x\n2,b,1,1,2,x\n")
    result = run("stats", f"burstgpt:{path}?model=[red]")
    assert "dropped: model is not [red]" in result.output


def test_plot(tmp_path):
    result = run("stats", "4090-a", "--plot", tmp_path / "p.png")
    assert result.exit_code == 0
    assert (tmp_path / "p.png").stat().st_size > 10_000
    assert run("stats", "4090-a", "--plot", tmp_path / "p.xls").exit_code == 2
    assert run("stats", "4090-a", "--plot", tmp_path / "new" / "p.png").exit_code == 0
    assert (tmp_path / "new" / "p.png").exists()


def test_plot_without_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run("stats", "4090-a", "--plot", tmp_path / "p.png")
    assert result.exit_code == 2
    assert "pip install 'matplotlib>=" in result.output
    assert run("stats", "4090-a").exit_code == 0


def test_errors_are_sentences_without_tracebacks(tmp_path):
    for args in (
        ("stats", "nonsense"),
        ("convert", "h200-a?scale=x", "-o", tmp_path / "x.jsonl"),
        ("convert", "h200-a", "-o", "/proc/none/x.jsonl"),
    ):
        result = run(*args)
        assert result.exit_code == 2
        assert isinstance(result.exception, SystemExit)
        assert "Traceback" not in result.output


def test_convert(tmp_path):
    path = tmp_path / "x.jsonl"
    result = run("convert", "h200-d?duration=10&readers=5", "-o", path)
    assert result.exit_code == 0
    assert open_trace(str(path)) == open_trace("h200-d?duration=10&readers=5")


def test_make_is_deterministic(tmp_path):
    options = (
        *("--rates", "10/20", "--ttft-slo", "1", "--tbt-slo", "0.1", "--name", "mine"),
        *("--priorities", "random:frequency=1,levels=3,active_s=5"),
    )
    files = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        path = tmp_path / f"{name}.jsonl"
        result = run(*MAKE, *options, "--seed", seed, "-o", path)
        assert result.exit_code == 0, result.output
        files.append(path.read_text())
    assert files[0] == files[1] != files[2]
    trace = open_trace(str(tmp_path / "a.jsonl"))
    assert trace.name == "mine"
    assert len(trace.requests) == 40
    assert trace.priority_updates
    request = trace.requests[0]
    assert (request.output_tokens, request.ttft_slo_s, request.tbt_slo_s) == (20, 1.0, 0.1)


def test_make_from_a_mix_and_from_another_trace(tmp_path):
    base = ("make", "--arrivals", "burst", "--requests", 9, "-o", tmp_path / "x.jsonl")
    assert run(*base, "--lengths", "long-context-8k").exit_code == 0
    assert run(*base, "--lengths", "like=h200-a").exit_code == 0
    known = {(r.prompt_tokens, r.output_tokens) for r in open_trace("h200-a").requests}
    trace = open_trace(str(tmp_path / "x.jsonl"))
    assert {(r.prompt_tokens, r.output_tokens) for r in trace.requests} <= known


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (("--lengths", "long-context-8k"), "cannot be given together with --prompts"),
        (("--duration", "5"), "exactly one of requests and duration"),
        (("--arrivals", "never"), "arrivals 'never' is unknown"),
        (("--sessions", "turns=2"), "sessions sessions: think_s must be given"),
        (("--priorities", "random"), "frequency, levels, active_s must be given"),
        (("--rates", "0"), "rate is 0.0"),
        (("--ttft-slo", "-1"), "'--ttft-slo': -1 is not allowed"),
    ],
)
def test_make_refuses(changes, problem, tmp_path):
    result = run(*MAKE, "-o", tmp_path / "x.jsonl", *changes)
    assert result.exit_code == 2
    assert problem in result.output.replace("\n", " ")
    assert not (tmp_path / "x.jsonl").exists()


def test_make_needs_lengths(tmp_path):
    base = ("make", "--arrivals", "burst", "--requests", 9, "-o", tmp_path / "x.jsonl")
    assert "either --lengths or both" in run(*base, "--prompts", "fixed:tokens=5").output
    assert "lengths 'odd' is unknown" in run(*base, "--lengths", "odd").output
    assert "no such trace" in run(*base, "--lengths", "like=odd").output


def test_help_names_every_generator_and_parameter():
    options = {p.name: p.help for p in typer_params("make")}
    sessions = {"sessions": SessionConfig}
    for option, kinds in (
        ("arrivals", ARRIVALS),
        ("prompts", LENGTHS),
        ("priorities", PRIORITIES),
        ("sessions", sessions),
    ):
        for name, kind in kinds.items():
            assert name in options[option] or option == "sessions"
            for parameter in parameter_names(kind):
                # markov shares the first parameters of random
                assert parameter in options[option], (option, parameter)
    for name in MIXES:
        assert name.removeprefix("long-context") in options["lengths"]


def typer_params(command):
    import typer

    return typer.main.get_command(trace_app).commands[command].params


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("patience", [0.0, 100.0])
def test_progress_shows_only_on_terminals_and_when_reading_takes_long(
    terminal, patience, monkeypatch, capsys
):
    monkeypatch.setattr(trace_command, "_PATIENCE_S", patience)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    with trace_command._progress() as report:
        time.sleep(0.01)
        report(5, 10)
    shown = capsys.readouterr().err
    assert ("reading" in shown) == (terminal and not patience)
    assert bool(shown) == (terminal and not patience)


def test_import_stays_light():
    heavy = ("numpy", "matplotlib", "pyarrow", "tokenflow_sgl.lab.traces")
    code = (
        "import sys, tokenflow_sgl.cli.trace; "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
