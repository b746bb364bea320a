"""``tokenflow advise``: its sentences over made-up figures, and the command over real runs."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tokenflow_sgl.cli.advice_output import verdict
from tokenflow_sgl.cli.app import app
from tokenflow_sgl.cli.failing import Exit
from tokenflow_sgl.lab.profiles import load_profile
from tokenflow_sgl.lab.report.goal import parse_goal
from tokenflow_sgl.lab.sim import EngineOptions
from tokenflow_sgl.lab.sim.study.advice import Advice, AdviceSetup, LoadFound
from tokenflow_sgl.lab.sim.study.own_settings import DEFAULTS, SETTINGS, TOKENFLOW
from tokenflow_sgl.lab.traces import open_trace

LOADS = (0.7, 1.0, 1.4, 2.0)


def run(well: float, **given: float) -> dict[str, float]:
    """Figures of a run in which such a share of the readers is served well."""
    others = {"ttft_p99": 0.5, "stalled_share": 0.0, "tbt_p99": 0.05, "e2e_mean": 20.0}
    return {"served_well": well, **others, **given}


@pytest.fixture
def command(in_this_process):
    """The command in an empty folder, in this process."""

    def call(*words: str):
        return CliRunner().invoke(app, ["advise", *words], env={"COLUMNS": "80"})

    return call


@pytest.fixture
def made(command, monkeypatch):
    """The command where so many readers are served well, by load and setting."""

    def call(ours: dict[float, float], best: float, *words: str):
        def made_up(setup, job):
            load, name = job
            if name == TOKENFLOW:
                return run(ours[load], tbt_p99=0.083)
            return run(best if name == "hrrn" else best - 0.1)

        monkeypatch.setattr("tokenflow_sgl.lab.sim.study.advice.run_of", made_up)
        return command("4090-c?duration=10", "--device", "rtx4090", *words)

    return call


def told(output: str) -> str:
    return " ".join(output.split())


def test_the_first_sentence_says_from_what_load_on(made) -> None:
    done = made({0.7: 0.9, 1.0: 0.9, 1.4: 0.95, 2.0: 1.0}, 0.9)
    assert done.exit_code == 0, done.output
    said = told(done.stdout)
    assert said.startswith("Yes: for llama3-8b on rtx4090 it helps from 1.4 times its load (")
    assert "95% of the readers are served well there, 90% with the best of SGLang's own" in said
    assert "(hrrn)" in said
    assert "gaps between tokens (ITL P99) 50 ms → 83 ms" in said
    assert "8 GB of host memory per rank" in said
    assert "--model-path meta-llama/Meta-Llama-3.1-8B --scheduler tokenflow" in said
    assert "--schedule-policy hrrn" in said
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert "64 of 64 runs" in done.stderr


def test_a_difference_of_less_than_a_reader_in_a_hundred_is_none(made) -> None:
    done = made(dict.fromkeys(LOADS, 0.905), 0.9)
    assert done.exit_code == Exit.failed
    assert "it makes no difference to how many readers are served well, at 0.7, 1" in told(
        done.stdout
    )
    assert "It helps this traffic at none of the loads tried." in done.stderr


def test_harm_is_said(made) -> None:
    done = made({0.7: 0.9, 1.0: 0.8, 1.4: 0.9, 2.0: 0.9}, 0.9)
    assert done.exit_code == Exit.failed
    assert "No: for llama3-8b on rtx4090 it serves fewer readers well at this traffic's" in told(
        done.stdout
    )
    mixed = made({0.7: 0.9, 1.0: 1.0, 1.4: 0.9, 2.0: 0.8}, 0.9)
    assert mixed.exit_code == 0
    assert "it helps at this traffic's load" in told(mixed.stdout)
    assert "It harms at 2 times its load" in told(mixed.stdout)


def test_json_and_the_page_say_the_same(made, tmp_path) -> None:
    done = made(dict.fromkeys(LOADS, 1.0), 0.9, "--json", "--html", "page.html")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["helps"] is True
    assert [each["load"] for each in found["loads"]] == list(LOADS)
    assert set(found["loads"][0]["settings"]) == set(SETTINGS) == set(found["flags"])
    page = (tmp_path / "page.html").read_text()
    assert found["verdict"][0].split(":")[0] in page
    assert "<script" not in page and "viewport" in page


def setup_of(trace: str, **given) -> AdviceSetup:
    profile = load_profile("rtx4090", "llama3-8b")
    options = EngineOptions(max_total_tokens=profile.kv_pool_tokens, chunked_prefill_size=2048)
    goal = parse_goal("ttft<=2,stall<=0.5")
    return AdviceSetup(open_trace(trace), profile, options, goal, **given)


def test_what_arrives_at_once_has_one_load() -> None:
    setup = setup_of("4090-a?scale=0.1", ranks=4)
    assert setup.loads == (1.0,)
    found = Advice((LoadFound(1.0, 0.0, {DEFAULTS: run(0.5), TOKENFLOW: run(0.9)}),))
    said = " ".join(verdict(setup, found))
    assert "it helps at this traffic's load: 90%" in said
    assert "All requests arrive at once, so there is one load." in said
    assert "--tp 4" in said
    assert setup.host_gb == pytest.approx(setup_of("4090-a?scale=0.1").host_gb / 4, rel=0.01)


def test_the_best_setting_is_the_defaults_where_none_is_better() -> None:
    runs = {DEFAULTS: run(0.5), "lpm": run(0.5, e2e_mean=19.9), TOKENFLOW: run(1.0)}
    assert LoadFound(1.0, 1.0, runs).best == DEFAULTS
    runs["lpm"] = run(0.5, e2e_mean=10.0)
    assert LoadFound(1.0, 1.0, runs).best == "lpm"
    runs["hrrn"] = run(0.6, e2e_mean=99.0)
    assert LoadFound(1.0, 1.0, runs).best == "hrrn"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--goal", "speed<=2"], "goal has 'speed<=2'; allowed is METRIC<=SECONDS"),
        (["--rate", "0"], "--rate"),
    ],
)
def test_what_is_wrong_is_said_before_the_work(command, words, sentence) -> None:
    done = command("4090-c?duration=10", *words)
    assert done.exit_code == Exit.usage
    assert sentence in told(done.stderr.replace("│", " "))
    assert command("missing.jsonl").exit_code == Exit.usage


def test_the_command_with_real_runs(command) -> None:
    words = ("--kv-tokens", "4000", "--limit", "12", "--json")
    done = command("4090-c?duration=4", "--device", "rtx4090", *words)
    assert done.exit_code in (0, Exit.failed), done.output
    found = json.loads(done.stdout)
    assert found["requests"] <= 12
    assert found["server_args"]["max_total_tokens"] == 4000
    assert all(0.0 <= r["served_well"] <= 1.0 for r in found["loads"][3]["settings"].values())
