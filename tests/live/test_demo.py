"""The demo end to end: two real servers on an emulated device, on a virtual clock."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from tokenflow_sgl.cli.demo import TOKENFLOW_ARGS
from tokenflow_sgl.lab.demo.burst import Burst
from tokenflow_sgl.lab.demo.run import DemoConfig, DemoServer, run_demo
from tokenflow_sgl.lab.runs import read_run

pytestmark = pytest.mark.engine

BURST = Burst(readers=12, kv_tokens=3000)
SERVE = str(Path(__file__).parents[1] / "helpers" / "server_side" / "emulated_server.py")
"""The emulator's launcher, which goes on in the process that has SGLang imported."""


def run(output: Path, warm: tuple[str, ...]) -> str:
    console = Console(file=io.StringIO(), width=140)
    config = DemoConfig(
        contenders=(DemoServer("stock"), DemoServer("tokenflow", TOKENFLOW_ARGS)),
        output=output,
        burst=BURST,
        launcher=(*warm, SERVE),
    )
    assert run_demo(config, console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.slow
def test_it_gives_the_same_run_twice(tmp_path: Path, warm: tuple[str, ...]) -> None:
    text = run(tmp_path / "first", warm)
    assert "12 of 12 answers have the same tokens on both servers" in text
    assert (tmp_path / "first" / "demo.png").stat().st_size > 20_000
    run(tmp_path / "second", warm)
    for name in ("stock", "tokenflow"):
        one, other = (read_run(tmp_path / folder / name) for folder in ("first", "second"))
        assert one.tokens == other.tokens, "every token has its time to the last bit"
        assert not one.info.invalid
        info = json.loads((tmp_path / "first" / name / "run.json").read_text())
        assert info["target"]["emulated_device"]["virtual_time"]
    stock, ours = (read_run(tmp_path / "first" / name).tokens for name in ("stock", "tokenflow"))
    assert stock != ours
