"""Requests that come at the same time: nothing is computed before what could end sooner."""

from __future__ import annotations

import pytest
from restoring_loop import PAGE, RestoringLoop

from tokenflow_sgl.lab.profiles import load_profile
from tokenflow_sgl.restoration import Channel, Job, PrefillMachine, in_chunks, schedule

PREFIXES = (30720, 6144, 16384, 10240, 24576, 8192, 12288, 20480)
SUFFIX, CHUNK = 128, 4096
PROFILE = load_profile("l40s", "llama3-8b")
RATE = 10e9 / 8 / PROFILE.kv_bytes_per_token


def planned(prefixes: tuple[int, ...]) -> float:
    """Mean TTFT by the planner's arithmetic, which knows of no step that is under way."""

    def step(tokens: int, prefix: int) -> float:
        return PROFILE.prefill_seconds(tokens, tokens * (prefix + tokens / 2))

    machine = PrefillMachine(
        in_chunks(step, CHUNK), (Channel("storage", RATE),), page=PAGE, chunk=CHUNK
    )
    return schedule([Job(prefix, SUFFIX) for prefix in prefixes], machine).mean_ttft


@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_a_batch_is_as_fast_as_planned(batch, monkeypatch) -> None:
    """Else what is computed alone takes whole chunks before one whose tail has landed."""
    prefixes = PREFIXES[:batch]
    loop = RestoringLoop(monkeypatch, PROFILE, prefixes, suffix=SUFFIX, rate=RATE, chunk=CHUNK)
    assert sum(loop.ttft) / batch <= 1.03 * planned(prefixes)
    assert loop.computing >= 0.97 * max(loop.ttft), "the device has work until the end"
