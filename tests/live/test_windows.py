"""Where the pool of windows is small, SGLang has no reason to retract.

The model is Qwen3-shaped, with a window of 24 tokens on every other layer: see
`tokenflow_sgl_emulator.models`.
"""

from __future__ import annotations

import pytest
from servers.fixtures import BROKEN

from tokenflow_sgl.engine.sglang.version import at_least

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.skipif(not at_least("0.5.23"), reason="this SGLang's windows are refused"),
]

TOKENFLOW = ("--scheduler", "tokenflow", "--chunked-prefill-size", "32")
# KV for all streams, and windows for four of them.
NARROW = ("--max-total-tokens", "2000", "--swa-full-tokens-ratio", "0.12")
NARROW_WITH_DRAFTS = ("--max-total-tokens", "2000", "--swa-full-tokens-ratio", "0.16")
"""The same, with places for their drafts."""
OFTEN = {"SGLANG_SWA_EVICTION_INTERVAL": "8"}
"""SGLang frees what has left a window in bundles of 128 tokens: longer than these streams."""
ROUNDS = 5


@pytest.fixture(scope="module")
def serve(start, models):
    """`serve(*flags)`: a server with the model."""
    return lambda *flags, **given: start(*flags, model=models / "qwen3-window", **given)


@pytest.fixture(scope="module")
def windowed_reference(arena) -> list[list[int]]:
    """What stock SGLang answers, one request at a time."""
    found: list[list[int]] = arena.undisturbed("qwen3-window")
    return found


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
def undrafted(arena) -> list[list[int]]:
    """What stock SGLang answers without drafts."""
    found: list[list[int]] = arena.undisturbed("windows")
    return found


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
