"""The demo with words: real KV on an emulated device, and what it shows of it."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from tokenflow_sgl.cli.demo import TOKENFLOW_ARGS
from tokenflow_sgl.lab.demo.dialogue import READERS
from tokenflow_sgl.lab.demo.listening import WordsError
from tokenflow_sgl.lab.demo.run import DemoServer
from tokenflow_sgl.lab.demo.text_demo import TextDemo, run_text_demo
from tokenflow_sgl_emulator.models import make_tiny_model
from tokenflow_sgl_emulator.trained.shipped import SMOLLM2, NotInstalledError, converted

pytestmark = pytest.mark.engine

SERVE = str(Path(__file__).parents[1] / "helpers" / "server_side" / "emulated_server.py")
FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
TINY_KV = 800
"""The tiny model's tokens are bytes: each prompt has about 200."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the architecture that can be served, with a tokenizer that knows all bytes."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "llama", "llama", layers=2)


def run(
    output: Path, words: Path, warm: tuple[str, ...], *ours: str, kv_tokens: int
) -> tuple[bool, str]:
    console = Console(file=io.StringIO(), width=120)
    second = DemoServer("tokenflow", ours)
    config = TextDemo(
        (DemoServer("stock"), second),
        output,
        words,
        kv_tokens=kv_tokens,
        launcher=(*warm, SERVE),
        pace=math.inf,
    )
    same = run_text_demo(config, console)
    assert isinstance(console.file, io.StringIO)
    return same, console.file.getvalue()


@pytest.fixture(autouse=True)
def policies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers find the policies of tests."""
    monkeypatch.setenv("PYTHONPATH", str(Path(SERVE).parent))


def test_words_are_the_same_whatever_is_paused(tmp_path, tiny, warm) -> None:
    flags = (*FORCED, "--hicache-ratio", "8")
    same, text = run(tmp_path, tiny, warm, *flags, kv_tokens=TINY_KV)
    assert same and "12 of 12 answers have the same tokens" in text
    said = json.loads((tmp_path / "words.json").read_text())
    for name in ("stock", "tokenflow"):
        assert [each["reader"] for each in said[name]] == [each.name for each in READERS]
        assert all(each["answer"] for each in said[name])
    assert said["stock"] != said["tokenflow"], "their moments"
    assert "Ada" in (tmp_path / "words.svg").read_text()


def test_kv_that_is_not_moved_is_noticed(tmp_path, tiny, warm, monkeypatch) -> None:
    monkeypatch.setenv("TOKENFLOW_TEST_BREAK", "no-copy")
    flags = (*FORCED, "--hicache-ratio", "8")
    try:
        same, text = run(tmp_path, tiny, warm, *flags, kv_tokens=TINY_KV)
    except WordsError as error:
        # What the host has in place of KV may be no number, which ends a server.
        assert not str(error).startswith("HTTP"), "it was not even asked"
        return
    assert not same and "12 of 12" not in text


@pytest.mark.slow
def test_a_trained_model_says_sensible_things(tmp_path, warm) -> None:
    try:
        words = converted(SMOLLM2, "float32")
    except NotInstalledError as error:
        pytest.skip(str(error))
    same, text = run(tmp_path, words, warm, *TOKENFLOW_ARGS, kv_tokens=400)
    assert same
    said = {
        each["reader"]: each for each in json.loads((tmp_path / "words.json").read_text())["stock"]
    }
    assert "scatter" in said["Ada"]["answer"]
    assert "Paris" in said["Chloe"]["answer"]
    assert "def " in said["Dev"]["answer"]
    assert "scatter" in text
