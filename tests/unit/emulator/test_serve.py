"""The launcher of emulated servers: what it refuses, and what it turns into."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tokenflow_sgl.lab.profiles import DeviceProfile
from tokenflow_sgl_emulator import serve


class Executed(Exception):
    """Raised in place of the process's replacement."""


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    command: list[str] = []

    def execv(path: str, argv: list[str]) -> None:
        command.extend(argv)
        raise Executed

    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return command


@pytest.fixture
def profile(make_profile: Callable[..., DeviceProfile], tmp_path: Path) -> str:
    make_profile().save(tmp_path / "toy.json")
    return str(tmp_path / "toy.json")


def test_becomes_sglang_with_the_device_in_the_environment(
    executed: list[str], profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--profile", profile, "--time-dilation", "1.5", "--", "--port", "1"]
    with pytest.raises(Executed):
        serve.main(arguments)
    folder = executed[executed.index("--model-path") + 1]
    assert Path(folder).is_relative_to(tmp_path / "cache")
    assert (Path(folder) / "config.json").exists()
    assert executed[:3] == [sys.executable, "-m", "sglang.launch_server"]
    assert executed[-2:] == ["--port", "1"]
    assert os.environ["SGLANG_PLATFORM"] == "tokenflow_emu"
    assert os.environ["TOKENFLOW_EMU_TIME_DILATION"] == "1.5"
    assert "one emulated second takes 1.5 s" in capsys.readouterr().out


def test_chooses_the_dilation_for_the_pool_that_is_asked_for(
    executed: list[str], profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(serve, "choose_dilation", lambda _, *sizes: asked.append(sizes) or 2.0)
    for options in (
        [],
        ["--max-total-tokens", "999", "--max-running-requests=7"],
        ["--mem-fraction-static", "0.5"],
    ):
        with pytest.raises(Executed):
            serve.main(["--profile", profile, "--", *options])
    # Half of 32 GiB without weights of 1 GiB, in tokens of 1,000 bytes.
    fits = 15 * (1 << 30) // 1000
    assert asked == [(4000, serve.MAX_RUNNING), (999, 7), (fits, serve.MAX_RUNNING)]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--", "--model-path", "x"], "--model-path cannot be given"),
        (["--", "--device=cuda"], "--device=cuda cannot be given"),
        (["--", "--model-pat", "x"], "--model-pat cannot be given: the emulated device brings"),
        (["--", "--served=x"], "--served=x cannot be given: the emulated device brings its own"),
        (["--", "--config", "x"], "--config cannot be given: write the file's options out"),
        (["--", "--conf=x"], "--conf=x cannot be given: write the file's options out"),
        (["--", "--mem-fraction-static", "7"], "mem-fraction-static is 7.0; allowed is a number"),
        (["--time-dilation", "fast"], "--time-dilation is 'fast'; allowed is auto or a number"),
        (["--time-dilation", "-1"], "--time-dilation is '-1'; allowed is auto or a number from"),
        (["--time-dilation", "nan"], "--time-dilation is 'nan'; allowed is auto or a number from"),
    ],
)
def test_refuses_in_a_sentence(
    executed: list[str],
    profile: str,
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        serve.main(["--profile", profile, *arguments])
    assert sentence in capsys.readouterr().err
    assert not executed


def test_a_missing_profile_is_named(
    executed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        serve.main(["--profile", str(tmp_path / "none.json")])
    assert "none.json" in capsys.readouterr().err
