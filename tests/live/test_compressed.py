"""DeepSeek V4: windows, compressed rows and the states of unfinished groups in pools of their own.

The pools, the prefix tree and the host's pools are SGLang's; what computes in them is a twin, whose
text depends on each of them. A stream resumes at a page of 256 tokens, so prompts are long here.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from servers.fixtures import BROKEN
from servers.tuned import CHECK_RANKS

from tokenflow_sgl_emulator.compressed.tiny_compressed import make_tiny_compressed

pytestmark = [pytest.mark.engine, pytest.mark.slow]

FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
# SGLang encodes chats with a recipe that wants DeepSeek's own tokens.
COMMON = (
    *("--max-running-requests", "8", "--chunked-prefill-size", "512"),
    "--skip-tokenizer-init",
)
AMPLE = ("--max-total-tokens", "16384")
# Six streams need about 4,500 tokens, in pages of 256.
SMALL = ("--max-total-tokens", "3072", "--hicache-ratio", "6", "--swa-full-tokens-ratio", "0.75")
LATE = {"TOKENFLOW_EMU_LATE_COPIES": "4"}
# SGLang takes no other name for the layer that the model brings.
DRAFTS = (
    *("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
)
TWO_RANKS = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
TOKENS = 120
ROUNDS = 5


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_compressed(tmp_path_factory.mktemp("compressed") / "v4")


@pytest.fixture(scope="module")
def long_prompts() -> list[list[int]]:
    """Of one page to four, none a whole number of pages or of groups."""
    chosen = random.Random(7)
    lengths = (190, 301, 430, 515, 770, 1030)
    return [[chosen.randrange(3, 259) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def answers(start, model, long_prompts) -> list[list[int]]:
    """What stock SGLang answers, one request at a time."""
    with start(*COMMON, *AMPLE, model=model) as served:
        return [served.outputs([prompt], max_new_tokens=TOKENS)[0] for prompt in long_prompts]


@pytest.fixture(scope="module")
def drafting_model(tmp_path_factory):
    """One with a layer for drafts."""
    return make_tiny_compressed(tmp_path_factory.mktemp("compressed") / "v4-nextn", drafts=True)


@pytest.fixture(scope="module")
def undrafted(start, drafting_model, long_prompts) -> list[list[int]]:
    """What stock SGLang answers without speculation."""
    with start(*COMMON, *AMPLE, model=drafting_model) as served:
        return served.outputs(long_prompts, max_new_tokens=TOKENS)


SETTINGS = {
    "hicache": (*SMALL,),
    "no hicache": (*AMPLE, "--tokenflow-hicache", "off"),
    "no overlap": (*SMALL, "--disable-overlap-schedule"),
    "two ranks": (*SMALL, "--tp-size", "2", CHECK_RANKS),
    "DP attention": (*SMALL, "--tp-size", "2", "--dp-size", "2", "--enable-dp-attention"),
}


@pytest.mark.parametrize("flags", SETTINGS.values(), ids=SETTINGS)
def test_tokens_are_those_of_the_undisturbed_run(
    start, model, long_prompts, answers, flags
) -> None:
    env = {**LATE, **(TWO_RANKS if "--tp-size" in flags else {})}
    with start(*FORCED, *COMMON, *flags, model=model, env=env) as served:
        for stream in (False, True):
            given = served.outputs(long_prompts, stream=stream, max_new_tokens=TOKENS)
            assert given == answers
        preempted = served.total("tokenflow:preemptions_total")
        recomputed = served.total("tokenflow:resume_recomputed_tokens_sum")
        print(f"{preempted:.0f} preemptions, {recomputed:.0f} tokens recomputed")
        assert preempted >= 4 * len(long_prompts), "the test must disturb"
        served.assert_clean()


def test_kv_that_was_not_copied_is_noticed(start, model, long_prompts, answers) -> None:
    """The control: nothing of the compressed rows and states goes to the host."""
    env = {**LATE, "TOKENFLOW_TEST_BREAK": "no-copy"}
    with start(*FORCED, *COMMON, *SMALL, model=model, env=env, program=BROKEN) as served:
        got = (served.outputs(long_prompts, max_new_tokens=TOKENS) for _ in range(ROUNDS))
        assert any(each != answers for each in got)


def with_drafts(served, prompts, *, stream: bool) -> tuple[list[list[int]], float]:
    """Tokens of all prompts, asked at once, and how many of them a step of drafts gave."""
    calls: list[Any] = [
        lambda p=prompt: served.generate(p, stream=stream, max_new_tokens=TOKENS)
        for prompt in prompts
    ]
    answers = served.together(calls)
    assert [answer.status for answer in answers] == [200] * len(prompts), answers
    told = [answer.body["meta_info"] for answer in answers]
    steps = sum(each["spec_verify_ct"] for each in told)
    accepted = sum(each["spec_num_correct_drafts"] for each in told)
    return [answer.body["output_ids"] for answer in answers], 1.0 + accepted / steps


@pytest.fixture(scope="module")
def undisturbed_acceptance(start, drafting_model, long_prompts, undrafted) -> float:
    """Tokens per step of stock SGLang with drafts."""
    with start(*COMMON, *AMPLE, *DRAFTS, model=drafting_model) as served:
        tokens, per_step = with_drafts(served, long_prompts, stream=False)
        assert tokens == undrafted
        return per_step


@pytest.mark.parametrize("name", ["hicache", "no hicache", "no overlap", "two ranks"])
def test_with_drafts_tokens_are_those_of_the_undisturbed_run(
    start, drafting_model, long_prompts, undrafted, undisturbed_acceptance, name
) -> None:
    """And drafts are accepted as often."""
    flags = SETTINGS[name]
    env = {**LATE, **(TWO_RANKS if "--tp-size" in flags else {})}
    with start(*FORCED, *COMMON, *flags, *DRAFTS, model=drafting_model, env=env) as served:
        for stream in (False, True):
            tokens, per_step = with_drafts(served, long_prompts, stream=stream)
            assert tokens == undrafted
            print(f"{per_step:.3f} tokens per step, {undisturbed_acceptance:.3f} undisturbed")
            assert per_step >= 0.9 * undisturbed_acceptance
        preempted = served.total("tokenflow:preemptions_total")
        recomputed = served.total("tokenflow:resume_recomputed_tokens_sum")
        print(f"{preempted:.0f} preemptions, {recomputed:.0f} tokens recomputed")
        assert preempted >= 4 * len(long_prompts), "the test must disturb"
        served.assert_clean()


def test_lost_drafts_are_noticed(
    start, drafting_model, long_prompts, undrafted, undisturbed_acceptance
) -> None:
    """The control: the draft layer's pages are not loaded from the host, so fewer are accepted."""
    env = {**LATE, "TOKENFLOW_TEST_BREAK": "no-draft-load"}
    flags = (*FORCED, *COMMON, *SMALL, *DRAFTS)
    with start(*flags, model=drafting_model, env=env, program=BROKEN) as served:
        for stream in (False, True):  # what is on the host of the first time is loaded, too
            tokens, per_step = with_drafts(served, long_prompts, stream=stream)
            assert tokens == undrafted
        assert per_step < 0.9 * undisturbed_acceptance
