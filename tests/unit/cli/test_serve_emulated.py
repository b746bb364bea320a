"""``tokenflow serve-emulated``: the profile that it makes and the process that it becomes."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.lab.profiles import DeviceProfile, load_profile

runner = CliRunner()


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    command: list[str] = []

    def execv(path: str, argv: list[str]) -> None:
        command.extend(argv)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return command


def value(command: list[str], option: str) -> str:
    return command[command.index(option) + 1]


def test_becomes_the_emulators_launcher_with_a_profile(executed: list[str], tmp_path: Path) -> None:
    arguments = ["serve-emulated", "--device", "rtx4090", "--model", "llama3-8b"]
    arguments += ["--time-dilation", "2", "--", "--scheduler", "tokenflow", "--port", "1"]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert executed[:3] == [sys.executable, "-m", "tokenflow_sgl_emulator.serve"]
    assert executed[-5:] == ["--", "--scheduler", "tokenflow", "--port", "1"]
    assert value(executed, "--time-dilation") == "2"
    profile = Path(value(executed, "--profile"))
    assert profile.is_relative_to(tmp_path)
    assert DeviceProfile.load(profile).device == "rtx4090"
    assert [path.name for path in profile.parent.iterdir()] == ["rtx4090-llama3-8b.json"]


def test_takes_a_profile_of_the_users(executed: list[str], tmp_path: Path) -> None:
    mine = tmp_path / "mine.json"
    load_profile("rtx4090", "llama3-8b").save(mine)
    result = runner.invoke(app, ["serve-emulated", "--profile", str(mine)])
    assert result.exit_code == 0, result.output
    assert value(executed, "--profile") == str(mine)
    assert value(executed, "--time-dilation") == "auto"


@pytest.mark.parametrize(
    ("option", "name", "known"),
    [("--device", "rtx9090", "rtx4090"), ("--model", "gpt-9", "llama3-8b")],
)
def test_unknown_names_get_a_sentence_with_the_known_ones(
    executed: list[str], option: str, name: str, known: str
) -> None:
    result = runner.invoke(app, ["serve-emulated", option, name], env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert name in result.output and known in result.output
    assert not executed


def test_says_what_is_missing(executed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "tokenflow_sgl_emulator" else found(name, *rest),
    )
    result = runner.invoke(app, ["serve-emulated"])
    assert result.exit_code == 2
    assert "An emulated server needs tokenflow_sgl_emulator: pip install " in result.output
    assert not executed
