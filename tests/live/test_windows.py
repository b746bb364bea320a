"""Models with sliding windows, whose layers with a window have a pool of their own.

The model is Qwen3-shaped, with a window of 24 tokens on every other layer: see
`tokenflow_sgl_emulator.models`.
"""

from __future__ import annotations

import pytest
from servers.fixtures import BROKEN

pytestmark = [pytest.mark.engine, pytest.mark.slow]

TOKENFLOW = ("--scheduler", "tokenflow", "--chunked-prefill-size", "32")
FORCED = (*TOKENFLOW, "--tokenflow-policy", "forced:PreemptEvery")
# Twelve streams need about 1,350 tokens: the device holds half of it, the host the rest.
HICACHE = ("--max-total-tokens", "704", "--hicache-ratio", "4")
NO_HICACHE = ("--max-total-tokens", "4000", "--tokenflow-hicache", "off")
# KV for all streams, and windows for four of them.
NARROW = ("--max-total-tokens", "2000", "--swa-full-tokens-ratio", "0.12")
NARROW_WITH_DRAFTS = ("--max-total-tokens", "2000", "--swa-full-tokens-ratio", "0.16")
"""The same, with places for their drafts."""
OFTEN = {"SGLANG_SWA_EVICTION_INTERVAL": "8"}
"""SGLang frees what has left a window in bundles of 128 tokens: longer than these streams."""
LATE = {**OFTEN, "TOKENFLOW_EMU_LATE_COPIES": "4"}
ROUNDS = 5


@pytest.fixture(scope="module")
def serve(start, models):
    """`serve(*flags)`: a server with the model."""
    return lambda *flags, **given: start(*flags, model=models / "qwen3-window", **given)


@pytest.fixture(scope="module")
def windowed_reference(serve, prompts):
    """What stock SGLang answers, one request at a time."""
    with serve("--max-total-tokens", "4000") as served:
        return [served.outputs([prompt])[0] for prompt in prompts]


def retracted(served) -> float:
    return served.sglang_total("sglang:num_retracted_requests_total")


def test_the_undisturbed_run_has_the_models_own_tokens(windowed_reference, models, prompts) -> None:
    """Those of transformers, in float64."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        models / "qwen3-window", dtype=torch.float64
    ).eval()
    ids = [torch.tensor([prompt]) for prompt in prompts[:4]]
    found = [
        model.generate(
            each, attention_mask=torch.ones_like(each), do_sample=False, max_new_tokens=24
        )[0, each.shape[1] :].tolist()
        for each in ids
    ]
    assert found == [answer[:24] for answer in windowed_reference[:4]]


def test_a_small_pool_of_windows_is_no_reason_to_retract(
    serve, prompts, windowed_reference
) -> None:
    with serve(*TOKENFLOW, *NARROW, env=OFTEN) as served:
        for _ in range(2):
            assert served.outputs(prompts, stream=True) == windowed_reference
        print(
            f"{served.total('tokenflow:preemptions_total'):.0f} preempted, "
            f"{retracted(served):.0f} retracted"
        )
        assert retracted(served) == 0
        assert served.total("tokenflow:policy_errors_total") == 0
        served.assert_clean()


@pytest.fixture(scope="module")
def narrow_with_drafts(drafting) -> tuple[str, ...]:
    """The flags of a server with few windows, whose streams take places for their drafts, too."""
    return (
        *("--speculative-algorithm", "EAGLE3"),
        *("--speculative-draft-model-path", str(drafting / "windows-eagle3")),
        *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1"),
        *("--speculative-num-draft-tokens", "4", "--max-running-requests", "16"),
        *NARROW_WITH_DRAFTS,
    )


@pytest.fixture(scope="module")
def undrafted(start, drafting, prompts) -> list[list[int]]:
    """What stock SGLang answers without drafts."""
    with start("--max-total-tokens", "4000", model=drafting / "windows") as served:
        return served.outputs(prompts)


def test_a_small_pool_of_windows_is_no_reason_to_retract_drafts(
    start, drafting, prompts, narrow_with_drafts, undrafted
) -> None:
    model = drafting / "windows"
    with start(*TOKENFLOW, *narrow_with_drafts, model=model, env=OFTEN) as served:
        for _ in range(2):
            assert served.outputs(prompts, stream=True) == undrafted
        print(
            f"{served.total('tokenflow:preemptions_total'):.0f} preempted, "
            f"{retracted(served):.0f} retracted"
        )
        assert retracted(served) == 0
        assert served.total("tokenflow:policy_errors_total") == 0
        served.assert_clean()


def test_that_is_because_the_policy_knows_of_it(serve, prompts, windowed_reference) -> None:
    env = {**OFTEN, "TOKENFLOW_TEST_BREAK": "no-windows"}
    with serve(*TOKENFLOW, *NARROW, program=BROKEN, env=env) as served:
        for _ in range(ROUNDS):  # a busy machine may have few of the streams at once
            assert served.outputs(prompts, stream=True) == windowed_reference
            if retracted(served) > 0:
                break
        print(f"{retracted(served):.0f} retracted")
        assert retracted(served) > 0


def test_with_drafts_it_is_likewise(
    start, drafting, prompts, narrow_with_drafts, undrafted
) -> None:
    given = {"program": BROKEN, "env": {**OFTEN, "TOKENFLOW_TEST_BREAK": "no-windows"}}
    with start(*TOKENFLOW, *narrow_with_drafts, model=drafting / "windows", **given) as served:
        for _ in range(ROUNDS):
            assert served.outputs(prompts, stream=True) == undrafted
            if retracted(served) > 0:
                break
        print(f"{retracted(served):.0f} retracted")
        assert retracted(served) > 0


@pytest.mark.parametrize(
    ("memory", "page"),
    [
        (HICACHE, 1),
        (NO_HICACHE, 1),
        (HICACHE, 16),
    ],
    ids=["hicache", "no hicache", "hicache, pages of 16"],
)
def test_tokens_are_those_of_the_undisturbed_run(
    serve, prompts, windowed_reference, memory, page
) -> None:
    flags = (*FORCED, *memory, "--page-size", str(page))
    with serve(*flags, env=LATE) as served:
        for stream in (False, True):
            assert served.outputs(prompts, stream=stream) == windowed_reference
        resumes = served.total("tokenflow:resumes_total")
        recomputed = served.total("tokenflow:resume_recomputed_tokens_sum")
        loaded = served.total("tokenflow:loaded_ahead_tokens_total")
        print(f"{resumes:.0f} resumes, {recomputed:.0f} recomputed, {loaded:.0f} prefetched")
        assert resumes >= 4 * len(prompts), "the test must disturb"
        assert (loaded > 0) == (memory is HICACHE)
        served.assert_clean()


def test_controls_are_noticed(serve, prompts, windowed_reference) -> None:
    """Nothing is copied to the host, so what is loaded is something else."""
    env = {**OFTEN, "TOKENFLOW_TEST_BREAK": "no-copy"}
    with serve(*FORCED, *HICACHE, program=BROKEN, env=env) as served:
        got = (served.outputs(prompts) for _ in range(ROUNDS))
        assert any(each != windowed_reference for each in got)
