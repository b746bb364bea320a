"""Models with recurrent states: a state per stream beside the KV of those layers that attend.

LFM2 keeps the inputs of short convolutions. SGLang publishes its state where a stream ends or is
paused, without overlap. Qwen3.5 keeps the matrices of gated delta networks; SGLang keeps one every
64 tokens here, so a resume computes at most so many anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from servers.fixtures import BROKEN
from servers.tuned import CHECK_RANKS

pytestmark = [pytest.mark.engine, pytest.mark.slow]

TOKENFLOW = ("--scheduler", "tokenflow")
FORCED = (*TOKENFLOW, "--tokenflow-policy", "forced:PreemptEvery")
# Twelve streams need about 1,350 tokens: the device holds half of it, the host the rest.
HICACHE = ("--max-total-tokens", "704", "--hicache-ratio", "6")
NO_HICACHE = ("--max-total-tokens", "4000", "--tokenflow-hicache", "off")
LATE = {"TOKENFLOW_EMU_LATE_COPIES": "4"}
ROUNDS = 5


@dataclass(frozen=True)
class Kind:
    """A tiny model.

    Attributes:
        model: Its name.
        flags: Of a server with it.
        grid: Tokens between two states that are kept; 1: one is kept wherever a stream is paused.
    """

    model: str
    flags: tuple[str, ...]
    grid: int


CONVOLUTIONS = Kind("lfm2", ("--max-mamba-cache-size", "48"), 1)
DELTAS = Kind("qwen3.5", ("--max-mamba-cache-size", "60", "--mamba-track-interval", "64"), 64)
KINDS = {"convolutions": CONVOLUTIONS, "deltas": DELTAS}


@pytest.fixture(scope="module")
def serve(start, models):
    """`serve(kind, *flags)`: a server with its model."""
    return lambda kind, *flags, **given: start(
        *kind.flags, *flags, model=models / kind.model, **given
    )


@pytest.fixture(scope="module")
def answers(serve, prompts):
    """What stock SGLang answers, one request at a time, of each kind of model."""
    found = {}
    for kind in KINDS.values():
        with serve(kind, "--max-total-tokens", "4000") as served:
            found[kind] = [served.outputs([prompt])[0] for prompt in prompts]
    return found


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_undisturbed_run_has_the_models_own_tokens(answers, models, prompts, kind) -> None:
    """Those of transformers, in float64."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(models / kind.model, dtype=torch.float64).eval()
    ids = [torch.tensor([prompt]) for prompt in prompts[:4]]
    found = [
        model.generate(
            each, attention_mask=torch.ones_like(each), do_sample=False, max_new_tokens=16
        )[0, each.shape[1] :].tolist()
        for each in ids
    ]
    assert found == [answer[:16] for answer in answers[kind][:4]]


SETTINGS = {
    "deltas, pages of 16": (DELTAS, (*HICACHE, "--page-size", "16")),
    "convolutions, hicache": (CONVOLUTIONS, HICACHE),
    "convolutions, no hicache": (CONVOLUTIONS, NO_HICACHE),
    "deltas, hicache": (DELTAS, HICACHE),
    "deltas, no hicache": (DELTAS, NO_HICACHE),
    "deltas, two ranks": (DELTAS, (*HICACHE, "--tp-size", "2", CHECK_RANKS)),
}


@pytest.mark.parametrize(
    ("kind", "flags"),
    [pytest.param(*each, id=name) for name, each in SETTINGS.items()],
)
def test_tokens_are_those_of_the_undisturbed_run(serve, prompts, answers, kind, flags) -> None:
    with serve(kind, *FORCED, *flags, env=LATE) as served:
        for stream in (False, True):
            assert served.outputs(prompts, stream=stream) == answers[kind]
        resumes = served.total("tokenflow:resumes_total")
        recomputed = served.total("tokenflow:resume_recomputed_tokens_sum")
        print(f"{resumes:.0f} resumes, {recomputed:.0f} tokens recomputed")
        assert resumes >= 4 * len(prompts), "the test must disturb"
        assert recomputed <= (kind.grid + 1) * resumes, "a resume goes on from a state"
        served.assert_clean()


@pytest.mark.parametrize("broken", ["no-state-copy", "no-copy"])
def test_controls_are_noticed(serve, prompts, answers, broken) -> None:
    """What is kept of a state is another one; or nothing is copied to the host."""
    env = {**LATE, "TOKENFLOW_TEST_BREAK": broken}
    with serve(CONVOLUTIONS, *FORCED, *HICACHE, program=BROKEN, env=env) as served:
        got = (served.outputs(prompts) for _ in range(ROUNDS))
        assert any(each != answers[CONVOLUTIONS] for each in got)


def test_copies_that_hold_all_states_are_waited_for(serve, prompts, answers) -> None:
    """SGLang ends the server if it finds no place; the copies of paused states hold up to all."""
    few = Kind(CONVOLUTIONS.model, ("--max-mamba-cache-size", "12"), 1)
    flags = (*FORCED, *HICACHE, "--chunked-prefill-size", "32")
    with serve(few, *flags, env=LATE) as served:
        for stream in (False, True, False, True):
            assert served.outputs(prompts * 2, stream=stream) == answers[CONVOLUTIONS] * 2
        assert served.total("tokenflow:resumes_total") >= 4 * len(prompts), "the test must disturb"
        served.assert_clean()


def test_few_states_are_no_reason_to_retract(serve, prompts) -> None:
    """Four of 24 streams run at once. There is KV for all.

    The host has room for the states of 300 pauses: each leaves one, and SGLang drops the one that
    was not used for longest, which may be the only one of a stream that rests. The shipped policy
    computes short streams again where the machine has been slow to copy; here it may not.
    """
    few = Kind(CONVOLUTIONS.model, ("--max-mamba-cache-size", "12"), 1)
    policy = ("--tokenflow-policy", "forced:LoadsAlways")
    flags = (*TOKENFLOW, *policy, "--max-total-tokens", "20000", "--hicache-ratio", "30")
    with serve(few, *flags) as served:
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
