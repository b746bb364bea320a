"""Tables on narrow terminals."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest
from rich.console import Console
from rich.table import Table

from tokenflow_sgl.cli import simulate_output
from tokenflow_sgl.lab.demo.result import result_table
from tokenflow_sgl.lab.report import figures
from tokenflow_sgl.lab.report.fitting import Fitting


def rendered(view, width):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(view)
    return console.file.getvalue()


@pytest.fixture
def table():
    made = Table("policy", "a rather long head of a column", "tokens per second", title="Title")
    made.add_row("tokenflow-with-a-long-name", "12,345,678", "0.00012")
    made.add_row("stock", "1", "[red]2[/red]")
    return made


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 120])
def test_no_word_and_no_number_is_cut(table, width):
    text = rendered(Fitting(table), width)
    assert "…" not in text
    if width >= 40:
        assert max(map(len, text.splitlines())) <= width
        for word in ("tokenflow-with-a-long-name", "12,345,678", "0.00012", "stock", "Title"):
            assert word in text
    for word in ("rather", "tokens", "policy"):
        assert word in text


def test_a_row_becomes_a_block_where_columns_do_not_fit(table):
    lines = [" ".join(line.split()) for line in rendered(Fitting(table), 45).splitlines()]
    assert lines.count("tokens per second: 0.00012") == 1
    assert lines[0] == "Title"


def test_the_demos_table_fits_80_columns(pair):
    text = rendered(Fitting(result_table(*map(figures, pair))), 80)
    assert "…" not in text
    assert all(word in text for word in ("tokenflow /", "stock", "tokens/s", "makespan T"))
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("keys", [("eta",), ("eta", "hysteresis"), ("eta", "margin", "reserve")])
def test_a_sweep_fits_80_columns(keys, monkeypatch, capsys):
    names = ("effective_throughput", "token_throughput", "mean_ttft_s", "p99_ttft_s")
    row = {**dict.fromkeys(keys, 0.85), **dict.fromkeys((*names, "mean_stall_s"), 12345.6)}
    monkeypatch.setenv("COLUMNS", "80")
    simulate_output.print_sweep(pa.Table.from_pylist([row]), "h200-a, tokenflow")
    text = capsys.readouterr().out
    assert "…" not in text and text.count("12,346") == 5
    assert max(map(len, text.splitlines())) <= 80
    for word in ("effective", "throughput", "ttft", *keys):
        assert word in text
