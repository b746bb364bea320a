"""MLA models, whose KV is a latent row per token, under forced preemption.

The model is DeepSeek-shaped: see `tokenflow_sgl_emulator.models`.
"""

from __future__ import annotations

import pytest
from servers.fixtures import BROKEN

pytestmark = pytest.mark.engine

FORCED = (
    *("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery"),
    *("--chunked-prefill-size", "32"),
)
# Twelve streams need about 1,350 tokens: the device holds half of it, the host the rest.
HICACHE = ("--max-total-tokens", "704", "--hicache-ratio", "4")
NO_HICACHE = ("--max-total-tokens", "4000", "--tokenflow-hicache", "off")
LATE = {"TOKENFLOW_EMU_LATE_COPIES": "4"}
ROUNDS = 5


@pytest.fixture(scope="module")
def latent_reference(start, models, prompts):
    """What stock SGLang answers, one request at a time."""
    with start("--max-total-tokens", "4000", model=models / "deepseek") as served:
        return [served.outputs([prompt])[0] for prompt in prompts]


@pytest.mark.parametrize(
    ("memory", "page"),
    [
        (HICACHE, 16),
        *(pytest.param(each, 1, marks=pytest.mark.slow) for each in (HICACHE, NO_HICACHE)),
    ],
    ids=["hicache", "hicache, pages of 16", "no hicache"],
)
def test_tokens_are_those_of_the_undisturbed_run(
    start, models, prompts, latent_reference, memory, page
) -> None:
    flags = (*FORCED, *memory, "--page-size", str(page))
    with start(*flags, model=models / "deepseek", env=LATE) as served:
        for stream in (False, True):
            assert served.outputs(prompts, stream=stream) == latent_reference
        resumes = served.total("tokenflow:resumes_total")
        recomputed = served.total("tokenflow:resume_recomputed_tokens_sum")
        loaded = served.total("tokenflow:loaded_ahead_tokens_total")
        print(f"{resumes:.0f} resumes, {recomputed:.0f} recomputed, {loaded:.0f} prefetched")
        assert resumes >= 4 * len(prompts), "the test must disturb"
        assert recomputed <= (page + 1) * resumes
        assert (loaded > 0) == (memory is HICACHE)
        served.assert_clean()


@pytest.mark.slow
def test_controls_are_noticed(start, models, prompts, latent_reference) -> None:
    """Nothing is copied to the host, so what is loaded is something else."""
    env = {"TOKENFLOW_TEST_BREAK": "no-copy"}
    with start(*FORCED, *HICACHE, model=models / "deepseek", program=BROKEN, env=env) as served:
        got = (served.outputs(prompts) for _ in range(ROUNDS))
        assert any(each != latent_reference for each in got)
