"""A server that computes attention as on a GPU: SGLang's Triton kernels, in their interpreter."""

from __future__ import annotations

import pytest
from servers.fixtures import COLD
from servers.layered import PLAIN, PLANS, ask

from tokenflow_sgl_emulator.models import make_tiny_model

pytestmark = [pytest.mark.engine, pytest.mark.slow]

NEW = 6
"""Tokens of an answer: a step takes seconds in the interpreter."""
FAR = 1e-3
"""By which log probabilities may differ: kernels sum in another order."""
INTERPRETED = {"TRITON_INTERPRET": "1"}
"""For a cold server: the interpreter is chosen when Triton is imported."""


@pytest.mark.parametrize("page", [1, 16])
def test_what_it_says_is_what_a_resident_run_says(start, prompts, tmp_path, page) -> None:
    model = make_tiny_model(tmp_path / "qwen3", "qwen3")
    few = prompts[:3]
    with start(*PLAIN, "--max-total-tokens", "4000", model=model) as served:
        resident = ask(served, few, NEW)
    notes = tmp_path / "notes"
    env = {**INTERPRETED, "TOKENFLOW_TEST_LAYERS": str(notes)}
    flags = (
        *(*PLAIN, "--tokenflow-layerwise", f"{PLANS}:AnyLayers", "--tokenflow-layerwise-ratio"),
        *("4", "--max-total-tokens", "640", "--page-size", str(page)),
        *("--attention-backend", "triton"),
    )
    with start(*flags, env=env, model=model, launcher=COLD) as served:
        said = ask(served, few, NEW)
        served.flush_when_idle()
        served.assert_clean()
    assert notes.read_text(), "plans must have changed layers"
    for (tokens, chances), (expected, others) in zip(said, resident, strict=True):
        assert tokens == expected
        far = max(
            abs(a - b)
            for row, other in zip(chances, others, strict=True)
            for a, b in zip(row, other, strict=True)
        )
        assert far < FAR
