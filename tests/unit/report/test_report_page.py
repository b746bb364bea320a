"""docs/report.md says what the code does."""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tokenflow_sgl.lab.report import CATALOGUE
from tokenflow_sgl.lab.report.bench_serving import BenchServing

PAGE = Path(__file__).parents[3] / "docs" / "report.md"


@pytest.fixture(scope="module")
def text():
    return PAGE.read_text(encoding="utf-8")


def test_every_figure_is_defined(text):
    defined = set(re.findall(r"`([a-z0-9_]+)`", text))
    stems = {re.sub(r"_(mean|p50|p90|p95|p99|p999)$", "", figure.key) for figure in CATALOGUE}
    assert not {stem for stem in stems if not {stem, f"{stem}_p99"} & defined}


def test_every_field_of_bench_serving_is_defined(text):
    defined = set(re.findall(r"`([a-z0-9_]+)`", text))
    parts = r"^(mean|median|std|p90|p95|p99)_"
    names = {re.sub(parts, "", field.name) for field in dataclasses.fields(BenchServing)}
    assert names <= defined


def test_every_option_is_listed(text):
    app = typer.Typer(add_completion=False)
    app.command()(importlib.import_module("tokenflow_sgl.cli.report").report)
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    options = set(re.findall(r"--[a-z][a-z-]+", shown)) - {"--help"}
    assert options == set(re.findall(r"`(--[a-z][a-z-]+)", text))


def test_pictures_exist_and_say_that_they_are_synthetic(text):
    pictures = re.findall(r"!\[([^\]]*)\]\(([^)]*)\)", text)
    assert pictures
    for words, path in pictures:
        assert (PAGE.parent / path).is_file()
        assert "synthetic" in words
