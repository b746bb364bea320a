"""Forced pauses of benchmarks/gpu/serve at toy size, and its control: broken copies are noticed."""

from __future__ import annotations

from pathlib import Path

import gpu_serve
import pytest
from servers.fixtures import MODULE

pytestmark = [pytest.mark.engine, pytest.mark.long]


def test_paused_streams_say_the_same_and_broken_copies_are_noticed(
    warm: tuple[str, ...], tmp_path: Path
) -> None:
    with gpu_serve.modules("machine", "same_tokens", "parts") as (machine, same_tokens, parts):
        toy = machine.Machine(True, "llama3-8b", tmp_path, launcher=(*warm, MODULE))
        found = same_tokens.compare(toy, dict(parts.cases(toy))["forced"], tmp_path)
    same, wrong = found["same_as_stock"], found["wrong_tokens"]
    assert same["ours"] == same["stock again"] == found["answers"] == 8
    assert found["counters"]["preemptions_total"] > 0
    assert found["counters"]["resume_loaded_tokens_total"] > 0
    assert same["broken"] < 8
    assert wrong["ours"] == 0 < wrong["broken"]
