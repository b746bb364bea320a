"""benchmarks/burst/own_memory.py: the README's table is its data, and how it judges."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks" / "burst"


@pytest.fixture
def tables(monkeypatch):
    """The module of the tables, with what it shares with others."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import own_memory_tables

    yield own_memory_tables
    for name in ("own_memory_tables", "compared"):
        del sys.modules[name]


@pytest.fixture
def data(tables) -> dict:
    return json.loads(tables.DATA.read_text())


def test_the_pages_have_the_tables_of_the_data(tables, data) -> None:
    readme, page = tables.README.read_text(), tables.PAGE.read_text()
    short, long = tables.short_table(data), tables.long_table(data)
    for text, marker, table in (
        (readme, "own-felt", tables.felt_table(data)),
        (page, "own", short),
        (page, "own-long", long),
    ):
        assert f"<!-- {marker} -->\n" in text
        assert tables.between(text, marker, table) == text


def test_every_workload_ran_under_every_setting_that_counts(tables, data) -> None:
    assert set(data["workloads"]) == set(tables.LABELS)
    settings = set(data["settings"])
    assert {tables.DEFAULTS, tables.TOKENFLOW} < settings
    for name, load in data["workloads"].items():
        first = load["draws"]["0"]
        assert set(first) == settings or name == "azure-1x"
        assert {tables.DEFAULTS, tables.TOKENFLOW} < set(first)
        best = {each.best(first) for each in (*tables.FIGURES, tables.EFFECTIVE)}
        assert sorted(load["draws"]) == (["0"] if "azure" in name else ["0", "1", "2", "3"])
        for number, runs in load["draws"].items():
            assert number == "0" or set(runs) == {*best, tables.DEFAULTS, tables.TOKENFLOW}
    assert data["commit"]
    assert not data["commit"].endswith("-dirty")
    assert data["date"]
    assert data["command"].startswith("python benchmarks/burst/own_memory.py")


@pytest.fixture
def figure(tables: ModuleType):
    def make(name: str):
        return next(each for each in tables.FIGURES if each.name == name)

    return make


def test_the_best_setting_is_sglangs_own(figure) -> None:
    ttft, well = figure("first text, mean"), figure("served well")
    runs = {
        "defaults": {"ttft_mean": 4.0, "served_well": 0.5},
        "hrrn": {"ttft_mean": 2.0, "served_well": 0.25},
        "tokenflow": {"ttft_mean": 1.0, "served_well": 0.75},
    }
    assert (ttft.best(runs), well.best(runs)) == ("hrrn", "defaults")
    assert (ttft.ratio(runs, "hrrn"), ttft.ratio(runs, "defaults")) == (0.5, 0.25)
    stalls = {"defaults": 0.01, "hrrn": 0.4, "tokenflow": 0.0}
    runs = {name: {**run, "stalled_share": stalls[name]} for name, run in runs.items()}
    assert ttft.smooth(runs) == "defaults"
    assert ttft.smooth({name: {**run, "stalled_share": 0.02} for name, run in runs.items()}) is None


@pytest.mark.parametrize(
    ("ours", "theirs", "worse"),
    [
        (1.03, 1.0, True),
        (1.01, 1.0, False),
        (0.5, 0.0, True),
        (0.001, 0.0, False),
        (0.9, 1.0, False),
    ],
)
def test_worse_is_what_a_reader_of_the_table_sees(figure, ours, theirs, worse) -> None:
    runs = {"hrrn": {"ttft_mean": theirs}, "tokenflow": {"ttft_mean": ours}}
    assert figure("first text, mean").worse(runs, "hrrn") is worse
    shares = {"hrrn": {"served_well": ours / 2}, "tokenflow": {"served_well": theirs / 2}}
    assert figure("served well").worse(shares, "hrrn") is worse
