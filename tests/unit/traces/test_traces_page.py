"""docs/traces.md shows what the commands print and names what there is."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tokenflow_sgl.cli.trace import trace_app
from tokenflow_sgl.lab.traces import WORKLOADS, TraceError, TraceRequest, open_trace
from tokenflow_sgl.lab.traces.generators.arrivals import ARRIVALS
from tokenflow_sgl.lab.traces.generators.priority_changes import PRIORITIES
from tokenflow_sgl.lab.traces.generators.request_lengths import LENGTHS
from tokenflow_sgl.lab.traces.loaders.native import FORMAT, VERSION
from tokenflow_sgl.lab.traces.parameters import parameter_names
from tokenflow_sgl.lab.traces.spec import FORMATS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "traces.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_figures_are_those_of_the_command(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "100")
    result = CliRunner().invoke(trace_app, ["stats", "traces/poisson.jsonl"])
    shown = next(text for kind, text in BLOCKS if kind == "text" and "Per request" in text)
    printed = "\n".join(line.rstrip() for line in result.output.splitlines())
    assert shown.strip() == printed.strip()


def test_the_lines_shown_are_those_of_the_file():
    shown = next(text for kind, text in BLOCKS if kind == "text" and FORMAT in text)
    lines = (ROOT / "traces" / "sessions.jsonl").read_text().splitlines()
    assert shown.splitlines() == [lines[0], lines[1], lines[3], lines[4]]
    assert f'"version":{VERSION}' in shown


def test_the_error_shown_is_the_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 00:00:00,4,4\n"
    Path("calls.csv").write_text(text + "2023-11-16 00:00:01,-4,4\n")
    with pytest.raises(TraceError) as caught:
        open_trace("azure:calls.csv")
    assert str(caught.value) in PAGE


def test_every_name_is_there():
    for name in (*WORKLOADS, *FORMATS):
        assert f"| `{name}` |" in PAGE, name
    for kinds in (ARRIVALS, LENGTHS, PRIORITIES):
        for name, kind in kinds.items():
            assert f"`{name}` |" in PAGE, name
            for parameter in parameter_names(kind):
                assert f"`{parameter}`" in PAGE, parameter
    for field in dataclasses.fields(TraceRequest):
        assert f"`{field.name}`" in PAGE, field.name


def test_the_workloads_are_those_of_the_table():
    for workload in WORKLOADS.values():
        arrivals = (
            f"burst of {workload.burst}"
            if workload.burst
            else f"Poisson, {workload.poisson_rate:g}/s"
        )
        row = (
            f"| `{workload.name}` | {arrivals} | {workload.input_mean} | {workload.output_mean} | "
            f"{workload.kv_tokens:,} |"
        )
        assert row in PAGE


def test_the_keys_of_the_table_are_taken_by_every_trace():
    table = PAGE.split("| key |")[1].split("\n\n")[0]
    keys = re.findall(r"`([a-z]\w*)=", table)
    with pytest.raises(TraceError) as caught:
        open_trace("native:x?nothing=1")
    allowed = set(str(caught.value).rpartition("allowed are ")[2].split(", "))
    assert set(keys) == allowed - {"sort"}


def test_the_python_runs():
    code = next(text for kind, text in BLOCKS if kind == "python")
    exec(compile(code, "docs/traces.md", "exec"), {})
