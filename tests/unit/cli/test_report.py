from __future__ import annotations

import importlib
import json
import re

import pytest
import typer
from typer.testing import CliRunner

from tokenflow_sgl.lab.runs import write_run

command = importlib.import_module("tokenflow_sgl.cli.report")
app = typer.Typer()
app.command()(command.report)


def run(*args):
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture(scope="module")
def folders(pair, tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for name, one in zip(("a", "b"), pair, strict=True):
        write_run(root / name, one)
    return root / "a", root / "b"


def test_prints_one_run_and_writes_nothing(folders):
    before = sorted(folders[0].iterdir())
    result = run(folders[0])
    assert result.exit_code == 0
    assert "Latency" in result.stdout and "Validity" in result.stdout
    assert "Wrote" not in result.output
    assert sorted(folders[0].iterdir()) == before


def test_compares_two(folders):
    result = run(*folders)
    assert result.exit_code == 0
    assert "tokenflow against stock" in result.stdout


def test_json_is_all_of_stdout(folders):
    assert json.loads(run(folders[0], "--json").stdout)["completed"] == 60
    both = json.loads(run(*folders, "--json").stdout)
    assert both["baseline"] == "stock"
    assert both["comparisons"][0]["figures"]["ttft_mean"]["verdict"] == "better"


def test_markdown(folders):
    assert run(*folders, "--markdown").stdout.startswith("| figure | unit | stock | tokenflow |")


def test_writes_a_page_and_says_so(folders, tmp_path):
    path = tmp_path / "new" / "page.html"
    result = run(folders[0], "--html", path)
    assert result.exit_code == 0
    assert "Wrote" in result.stderr and "page.html" in result.stderr.replace("\n", "")
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_options_reach_the_figures(folders):
    result = run(
        folders[0],
        *("--json", "--ttft-penalty", 0.5, "--stall-penalty", 2, "--tbt-rule", "mean"),
        *("--expected-ttft", 3, "--ttft-slo", 9, "--tbt-slo", 0.7, "--seed", 4),
    )
    options = json.loads(result.stdout)["tokenflow"]["options"]
    assert (options["ttft_penalty"], options["stall_penalty"]) == (0.5, 2)
    assert (options["tbt_rule"], options["expected_ttft_s"]) == ("mean", 3)
    assert (options["ttft_slo_s"], options["tbt_slo_s"], options["seed"]) == (9, 0.7, 4)


@pytest.mark.parametrize(
    ("places", "told"),
    [
        (["a/new", "b/new"], ["a", "b"]),
        (["a/new", "a/old", "b/new"], ["a/new", "a/old", "b/new"]),
        (["a/1/new", "a/2/new"], ["1", "2"]),
    ],
)
def test_runs_of_one_name_in_folders_of_one_name_are_told_apart(pair, tmp_path, places, told):
    for place in places:
        write_run(tmp_path / place, pair[0])
    header = run(*(tmp_path / place for place in places), "--markdown").stdout.splitlines()[0]
    for words in told:
        assert f"stock ({words})" in header


def test_runs_of_one_name_are_told_apart(folders, pair, tmp_path):
    write_run(tmp_path / "again", pair[0])
    result = run(folders[0], tmp_path / "again", "--markdown")
    assert "stock (a)" in result.stdout and "stock (again)" in result.stdout


def test_other_traces_are_refused_and_may_be_allowed(folders, synthetic, tmp_path):
    write_run(tmp_path / "other", synthetic.make_run("stock", readers=30, name="other"))
    result = run(folders[0], tmp_path / "other")
    assert result.exit_code == 2
    assert "other did not serve the same trace as stock" in " ".join(result.stderr.split())
    result = run(folders[0], tmp_path / "other", "--allow-different")
    assert result.exit_code == 0
    assert "unpaired" in result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--tbt-rule", "p98"], "Invalid value for '--tbt-rule'"),
        (["--ttft-slo", "0"], "Invalid value for '--ttft-slo': 0 is not allowed"),
        (["--resamples", "1"], "Invalid value for '--resamples'"),
    ],
)
def test_bad_options_get_a_sentence(folders, args, message):
    result = run(folders[0], *args)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_json_and_markdown_exclude_each_other(folders):
    assert run(folders[0], "--json", "--markdown").exit_code == 2


def test_what_is_no_run_gets_a_sentence(tmp_path):
    result = run(tmp_path / "nothing")
    assert result.exit_code == 2
    assert re.search(r"No report: .* is not there", " ".join(result.stderr.split()))


def test_names_what_is_missing(folders, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run(folders[0])
    assert result.exit_code == 2
    assert result.stderr == "A report needs pyarrow: pip install 'pyarrow>=15'\n"
