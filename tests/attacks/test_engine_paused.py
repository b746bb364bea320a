"""Pausing the engine, flushing its caches and changing its weights, while streams are served."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from servers.fixtures import FEW

from tokenflow_sgl_emulator.models import make_tiny_model

pytestmark = pytest.mark.engine

FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
POOLS = ("--max-total-tokens", "704", "--hicache-ratio", "4")
LATE = {"TOKENFLOW_EMU_LATE_COPIES": "4"}
"""Copies are acknowledged late, so that some are under way when the engine is paused."""
ROUNDS = 4
MORE_ROUNDS = 16
"""At most, where interruptions came too late: the answers had ended."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((), id="written through"),
        # Copies of paused streams are locked when the tree is thrown away.
        pytest.param(("--hicache-write-policy", "write_back"), id="written back"),
    ],
)
def served(start, request):
    with start(*FORCED, *POOLS, *request.param, env=LATE) as server:
        yield server
        server.assert_clean()


@pytest.fixture(scope="module")
def other_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("other") / "qwen3"
    return make_tiny_model(folder, arch="qwen3", layers=FEW, seed=7)


def interrupted(
    served, prompts, what, moment: float = 0.4, **how: Any
) -> tuple[list[list[int]], Any]:
    """The outputs of streams that are interrupted after a moment, and what `what()` returned."""

    def interrupt() -> Any:
        time.sleep(moment)
        served.post("/pause_generation", {"mode": "retract"})
        try:
            return what()
        finally:
            served.post("/continue_generation", {})

    calls = [lambda p=p: served.generate(p, stream=True, **how) for p in prompts]
    *answers, seen = served.together([*calls, interrupt])
    assert [answer.status for answer in answers] == [200] * len(prompts)
    return [answer.body["output_ids"] for answer in answers], seen


def flush(served) -> int:
    return int(served.post("/flush_cache", None).status)


def test_a_paused_engine_can_be_flushed(served, prompts, reference) -> None:
    for _ in range(ROUNDS):
        outputs, flushed = interrupted(served, prompts, lambda: [flush(served) for _ in range(2)])
        assert flushed == [200, 200]
        assert outputs == reference
    assert served.total("tokenflow:preemptions_total") > len(prompts), "the test must disturb"


@pytest.mark.slow
def test_new_weights_meet_no_kv_of_the_old_ones(
    served, prompts, reference, models, other_weights
) -> None:
    def update(path: Path) -> Any:
        return served.post("/update_weights_from_disk", {"model_path": str(path)}).body["success"]

    changed, moment = 0, 0.4
    for number in range(ROUNDS + MORE_ROUNDS):
        if number >= ROUNDS and changed >= len(prompts):
            break
        before_this = changed
        try:
            outputs, updated = interrupted(served, prompts, lambda: update(other_weights), moment)
            assert updated
            for prompt, before, output in zip(prompts, reference, outputs, strict=True):
                agreed = [*(a == b for a, b in zip(before, output, strict=True)), False]
                kept = agreed.index(False)
                if kept < len(output):
                    changed += 1
                    # By the new weights alone, from what the old ones had said.
                    served.flush_when_idle()
                    how = {"max_new_tokens": len(output) - kept}
                    assert served.outputs([prompt + output[:kept]], **how) == [output[kept:]]
        finally:
            served.flush_when_idle()
            assert update(models / "qwen3")
        if changed == before_this:
            moment /= 2
    assert changed >= len(prompts), "the updates must come in the middle"
    assert served.outputs(prompts[:2]) == reference[:2]
