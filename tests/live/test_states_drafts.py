"""Recurrent states with speculation: every token is the one without drafts, pauses or not.

A verification leaves a state behind each draft, and SGLang takes over the one behind what was
accepted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from servers.fixtures import BROKEN
from servers.tuned import CHECK_RANKS

pytestmark = [pytest.mark.engine, pytest.mark.slow]

FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
STATES = ("--max-mamba-cache-size", "60", "--mamba-track-interval", "64")
GRID = 64
"""Tokens between two states that are kept."""
AMPLE = ("--max-total-tokens", "4000")
SMALL = ("--max-total-tokens", "960", "--hicache-ratio", "6")
NO_HICACHE = ("--tokenflow-hicache", "off")
LATE = {"TOKENFLOW_EMU_LATE_COPIES": "4"}
NGRAM = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "4")
ROUNDS = 3


@pytest.fixture(scope="module")
def model(drafting) -> Path:
    """A tiny Qwen3.5 with a layer that predicts a token more."""
    return drafting / "qwen3.5-mtp"


@pytest.fixture(scope="module")
def nextn(model) -> tuple[str, ...]:
    """Speculation with that layer."""
    return (
        *("--speculative-algorithm", "NEXTN", "--speculative-draft-model-path", str(model)),
        *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1"),
        *("--speculative-num-draft-tokens", "4"),
    )


@pytest.fixture(scope="module")
def serve(start, model):
    """`serve(*flags)`: a server with that model."""
    return lambda *flags, **how: start(*STATES, *flags, model=model, **how)


@pytest.fixture(scope="module")
def undrafted(serve, prompts) -> list[list[int]]:
    """What stock SGLang answers without speculation, one request at a time."""
    with serve(*AMPLE) as served:
        return [served.outputs([prompt])[0] for prompt in prompts]


def ask(served, prompts, *, stream: bool = False) -> tuple[list[list[int]], int]:
    """Tokens of all prompts, asked at once, and how many drafts were accepted."""
    calls: list[Any] = [lambda p=prompt: served.generate(p, stream=stream) for prompt in prompts]
    answers = served.together(calls)
    assert [answer.status for answer in answers] == [200] * len(prompts), answers
    told = [answer.body["meta_info"] for answer in answers]
    accepted = sum(each["spec_num_correct_drafts"] for each in told)
    return [answer.body["output_ids"] for answer in answers], accepted


SETTINGS = {
    "nextn": ("nextn", SMALL),
    "nextn, no overlap": ("nextn", (*SMALL, "--disable-overlap-schedule")),
    "nextn, no hicache, pages of 16, two ranks": (
        "nextn",
        (*AMPLE, *NO_HICACHE, "--page-size", "16", "--tp-size", "2", CHECK_RANKS),
    ),
    "ngram": ("ngram", SMALL),
}
OFTEN = "nextn"


@pytest.mark.parametrize(
    ("drafts", "flags"),
    [
        pytest.param(*each, id=name, marks=[pytest.mark.slow] if name != OFTEN else [])
        for name, each in SETTINGS.items()
    ],
)
def test_tokens_are_those_of_the_undisturbed_run(
    serve, prompts, undrafted, nextn, drafts, flags
) -> None:
    options = nextn if drafts == "nextn" else NGRAM
    with serve(*FORCED, *options, *flags, env=LATE) as served:
        # The second time, NGRAM knows the answers.
        for stream in (False, True):
            tokens, accepted = ask(served, prompts, stream=stream)
            assert tokens == undrafted
        resumes = served.total("tokenflow:resumes_total")
        recomputed = served.total("tokenflow:resume_recomputed_tokens_sum")
        print(
            f"{resumes:.0f} resumes, {recomputed:.0f} tokens recomputed, {accepted} drafts accepted"
        )
        assert accepted > len(prompts), "the test must take over states behind drafts"
        assert resumes >= 4 * len(prompts), "the test must disturb"
        assert recomputed <= (GRID + 4) * resumes, "a resume goes on from a state"
        served.assert_clean()


def test_a_wrong_state_is_noticed(serve, prompts, undrafted, nextn) -> None:
    """The control: what is kept of a paused stream has another one's state."""
    env = {**LATE, "TOKENFLOW_TEST_BREAK": "no-state-copy"}
    with serve(*FORCED, *nextn, *SMALL, program=BROKEN, env=env) as served:
        assert any(ask(served, prompts)[0] != undrafted for _ in range(ROUNDS))
