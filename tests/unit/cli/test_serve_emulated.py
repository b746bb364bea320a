"""``tokenflow serve-emulated``: the profile that it makes and the process that it becomes."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.lab.profiles import DeviceProfile, load_profile
from tokenflow_sgl_emulator.trained import shipped

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


def test_words_are_computed_in_the_devices_time(
    executed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "words"
    folder.mkdir()
    (folder / "config.json").write_text('{"num_hidden_layers": 30}')
    monkeypatch.setattr(shipped, "converted", lambda *_: folder)
    result = runner.invoke(app, ["serve-emulated", "--words", "--virtual-time"])
    assert result.exit_code == 0, result.output
    assert value(executed, "--words") == str(folder)
    made = DeviceProfile.load(Path(value(executed, "--profile")))
    plain = load_profile(made.device, made.model)
    assert made == dataclasses.replace(plain, layers=30)
    mine = tmp_path / "mine.json"
    plain.save(mine)
    result = runner.invoke(
        app, ["serve-emulated", "--words", "--time-dilation", "30", "--profile", str(mine)]
    )
    assert result.exit_code == 0, result.output
    assert DeviceProfile.load(mine) == plain, "that of the user is left alone"


def test_words_need_to_be_told_how_long_a_step_may_take(executed: list[str]) -> None:
    result = runner.invoke(app, ["serve-emulated", "--words"])
    assert result.exit_code == 2
    assert "give --virtual-time, or a --time-dilation" in " ".join(result.output.split())
    assert not executed
