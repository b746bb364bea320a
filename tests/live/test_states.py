"""Models with recurrent states: a state per stream beside the KV of those layers that attend.

LFM2 keeps the inputs of short convolutions. SGLang publishes its state where a stream ends or is
paused, without overlap. Qwen3.5 keeps the matrices of gated delta networks; SGLang keeps one every
64 tokens here, so a resume computes at most so many anew.
"""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow]

TOKENFLOW = ("--scheduler", "tokenflow")
FORCED = (*TOKENFLOW, "--tokenflow-policy", "forced:PreemptEvery")
# Twelve streams need about 1,350 tokens: the device holds half of it, the host the rest.
HICACHE = ("--max-total-tokens", "704", "--hicache-ratio", "6")
LATE = {"TOKENFLOW_EMU_LATE_COPIES": "4"}
ROUNDS = 5


FEW = ("--max-mamba-cache-size", "12")
"""States for four streams that run."""


@pytest.fixture(scope="module")
def serve(start, models):
    """`serve(*flags)`: a server with convolutions and few states."""
    return lambda *flags, **given: start(*FEW, *flags, model=models / "lfm2", **given)


@pytest.mark.parametrize("name", ["lfm2", "qwen3.5"])
def test_the_undisturbed_run_has_the_models_own_tokens(arena, models, prompts, name) -> None:
    """Those of transformers, in float64."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(models / name, dtype=torch.float64).eval()
    ids = [torch.tensor([prompt]) for prompt in prompts[:4]]
    found = [
        model.generate(
            each, attention_mask=torch.ones_like(each), do_sample=False, max_new_tokens=16
        )[0, each.shape[1] :].tolist()
        for each in ids
    ]
    assert found == [answer[:16] for answer in arena.undisturbed(name)[:4]]


def test_copies_that_hold_all_states_are_waited_for(serve, prompts, arena) -> None:
    """SGLang ends the server if it finds no place; the copies of paused states hold up to all."""
    flags = (*FORCED, *HICACHE, "--chunked-prefill-size", "32")
    with serve(*flags, env=LATE) as served:
        for stream in (False, True, False, True):
            assert served.outputs(prompts * 2, stream=stream) == arena.undisturbed("lfm2") * 2
        assert served.total("tokenflow:resumes_total") >= 4 * len(prompts), "the test must disturb"
        served.assert_clean()


def test_few_states_are_no_reason_to_retract(serve, prompts) -> None:
    """Four of 24 streams run at once. There is KV for all.

    The host has room for the states of 300 pauses: each leaves one, and SGLang drops the one that
    was not used for longest, which may be the only one of a stream that rests. The shipped policy
    computes short streams again where the machine has been slow to copy; here it may not.
    """
    policy = ("--tokenflow-policy", "forced:LoadsAlways")
    flags = (*TOKENFLOW, *policy, "--max-total-tokens", "20000", "--hicache-ratio", "30")
    with serve(*flags) as served:
        # At first it has learned nothing, and may pause none; a slow machine needs slow readers.
        for turn in range(ROUNDS):
            served.outputs(
                prompts * 2,
                stream=True,
                max_new_tokens=300,
                custom_params={"tokenflow_rate": 3.0 / (turn + 1)},
            )
            if resumes := served.total("tokenflow:resumes_total"):
                break
        recomputed = served.total("tokenflow:resume_recomputed_tokens_sum")
        retracted = served.sglang_total("sglang:num_retracted_requests_total")
        print(f"{resumes:.0f} resumes, {recomputed:.0f} recomputed, {retracted:.0f} retracted")
        assert resumes, "the test must disturb"
        assert recomputed <= 2 * resumes, "each finds its state"
        assert retracted == 0
        assert served.total("tokenflow:policy_errors_total") == 0
        served.assert_clean()
