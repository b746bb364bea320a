"""DeepSeek V4 on the decode server of a disaggregated pair, with `--scheduler tokenflow` on both.

SGLang keeps no copy of what it retracts of this model: a prefill server computes it again. A pause
keeps one of all its pools. The model is that of `test_compressed`.
"""

from __future__ import annotations

import functools
import random
import time
from typing import Any

import pytest
from servers.fixtures import BROKEN
from servers.meeting import Pair, pair
from servers.tuned import CHECK_RANKS

from tokenflow_sgl_emulator.compressed.tiny_compressed import make_tiny_compressed

pytestmark = [pytest.mark.engine, pytest.mark.slow]

COMMON = (
    *("--scheduler", "tokenflow", "--max-running-requests", "8"),
    *("--chunked-prefill-size", "512", "--skip-tokenizer-init"),
)
PREFILL = ("--max-total-tokens", "16384", "--swa-full-tokens-ratio", "0.9")
FORCED = ("--tokenflow-policy", "forced:PreemptEvery")
# Six streams need about 4,500 tokens, in pages of 256, and two pages of windows each.
SMALL = ("--max-total-tokens", "3072", "--hicache-ratio", "6", "--swa-full-tokens-ratio", "0.9")
TWO_RANKS = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
DP_ATTENTION = (
    *("--enable-dp-attention", "--dp-size", "2", "--tp-size", "2"),
    "--no-enable-tp-lm-head-all-to-all",  # an operator of SGLang's that the CPU does not have
)
# SGLang takes no other name for the layer that the model brings.
DRAFTS = (
    *("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
)
TOKENS = 120
ROUNDS = 5


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_compressed(tmp_path_factory.mktemp("compressed") / "v4")


@pytest.fixture(scope="module")
def long_prompts() -> list[list[int]]:
    """Of one page to four. All answers end a group of 128, whose state pauses must keep."""
    chosen = random.Random(7)
    lengths = (190, 350, 430, 620, 750, 1010)
    return [[chosen.randrange(3, 259) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def answers(start, model, long_prompts) -> list[list[int]]:
    """What stock SGLang answers, one server and one request at a time."""
    with start(*COMMON[2:], *PREFILL, model=model) as served:
        return [served.outputs([prompt], max_new_tokens=TOKENS)[0] for prompt in long_prompts]


@pytest.fixture(scope="module")
def forced(start, model):
    """A pair whose decode server preempts every few steps."""
    with pair(start, *COMMON, prefill=PREFILL, decode=(*FORCED, *SMALL), model=model) as both:
        yield both
        both.decode.assert_clean()


def check(
    both: Pair, prompts: list[list[int]], answers: list[list[int]], *, drafts: bool = False
) -> None:
    """What is said is `answers`, after many pauses.

    drafts: A stream that drains may end, for the last step gives it several tokens.
    """
    for stream in (False, True):
        assert both.outputs(prompts, stream=stream, max_new_tokens=TOKENS) == answers
    preempted = both.decode.total("tokenflow:preemptions_total")
    retracted = both.decode.sglang_total("sglang:num_retracted_requests_total")
    print(f"{preempted:.0f} preemptions, {retracted:.0f} retracted")
    assert preempted >= 4 * len(prompts), "the test must disturb"
    ended = preempted - both.decode.total("tokenflow:resumes_total")
    assert 0 <= ended <= (2 * len(prompts) if drafts else 0)
    assert both.decode.total("tokenflow:resume_recomputed_tokens_sum") == 0
    least = min(map(len, prompts))
    assert both.decode.total("tokenflow:resume_loaded_tokens_total") >= least * (preempted - ended)
    assert both.decode.total("tokenflow:policy_errors_total") == 0
    assert both.decode.total("tokenflow:lost_streams_total") == 0


def test_tokens_are_those_of_the_undisturbed_run(forced, long_prompts, answers) -> None:
    check(forced, long_prompts, answers)


SETTINGS = {
    "no overlap": ((), ("--disable-overlap-schedule",)),
    "two ranks": (("--tp-size", "2"), (CHECK_RANKS,)),
    "DP attention": (DP_ATTENTION, ()),
}


@pytest.mark.parametrize(("flags", "decode"), SETTINGS.values(), ids=SETTINGS)
def test_other_settings(start, model, long_prompts, answers, flags, decode) -> None:
    env = TWO_RANKS if "--tp-size" in flags else {}
    given = {"prefill": PREFILL, "decode": (*FORCED, *SMALL, *decode), "model": model}
    with pair(start, *COMMON, *flags, first={"env": env}, env=env, **given) as both:
        check(both, long_prompts, answers)
        both.decode.assert_clean()


def test_aborted_streams_leave_nothing(forced, long_prompts, answers) -> None:
    """Some of them are paused then, whose only KV is the copy: no flush drops that."""
    decode = forced.decode

    def interrupt(preempted: float) -> int:
        decode.wait_for("preemptions_total", preempted)
        decode.post("/pause_generation", {"mode": "in_place"})
        refused = decode.post("/flush_cache", None).status
        decode.post("/abort_request", {"abort_all": True})
        decode.post("/continue_generation", {})
        return refused

    calls = [lambda p=p: forced.generate(p, max_new_tokens=400) for p in long_prompts]
    for _ in range(ROUNDS):  # on a busy machine all may have ended before the abort
        before = decode.total("tokenflow:preemptions_total")
        interrupted = functools.partial(interrupt, before + 1)
        *answered, refused = decode.together([*calls, interrupted])
        # What was aborted before its KV had come is answered with an error.
        begun = [answer.body["meta_info"] for answer in answered if answer.status == 200]
        ends = {meta["finish_reason"]["type"] for meta in begun}
        if refused == 400 and ends == {"abort"}:
            break
    assert ends == {"abort"}
    assert refused == 400
    for name in ("running_streams", "paused_streams", "waiting_streams"):
        decode.wait_until(name, 0)
    decode.assert_clean()
    assert forced.outputs(long_prompts, max_new_tokens=TOKENS) == answers
    assert decode.total("tokenflow:lost_streams_total") == 0


def test_a_pause_of_the_engine_that_drops_all_keeps_the_answers(
    forced, long_prompts, answers
) -> None:
    """The copies go, too: a prefill server computes all again."""
    decode = forced.decode

    def interrupt(preempted: float) -> bool:
        decode.wait_for("preemptions_total", preempted)
        decode.post("/pause_generation", {"mode": "retract"})
        time.sleep(0.3)
        flushed = decode.post("/flush_cache", None).status == 200
        decode.post("/continue_generation", {})
        return flushed

    few = 4  # that the device has room for: what waits for memory is not dropped
    calls = [lambda p=p: forced.generate(p, max_new_tokens=TOKENS) for p in long_prompts[:few]]
    for _ in range(ROUNDS):
        before = decode.total("tokenflow:preemptions_total")
        interrupted = functools.partial(interrupt, before + 1)
        *answered, flushed = decode.together([*calls, interrupted])
        assert [answer.body["output_ids"] for answer in answered] == answers[:few]
        # On a busy machine all may have ended before the pause, and then anything can be flushed.
        preempted = decode.total("tokenflow:preemptions_total") > before
        if preempted and flushed:
            break
    assert preempted, "the test must disturb"
    assert flushed
    assert decode.total("tokenflow:lost_streams_total") == 0


def test_the_shipped_policy_takes_turns(start, model, long_prompts, answers) -> None:
    """More readers than the memory holds."""
    reader = {"custom_params": {"tokenflow_rate": 10}, "stream": True, "max_new_tokens": TOKENS}
    with pair(start, *COMMON, prefill=PREFILL, decode=SMALL, model=model) as both:
        for _ in range(ROUNDS):
            assert both.outputs(long_prompts, **reader) == answers
        paused = both.decode.total("tokenflow:preemptions_total")
        retracted = both.decode.sglang_total("sglang:num_retracted_requests_total")
        print(f"{paused:.0f} paused, {retracted:.0f} retracted")
        assert paused > 0
        both.decode.assert_clean()


# Five streams have two pages each, and all want a third at the same time.
FULL = ("--max-total-tokens", "2816", "--hicache-ratio", "6", "--swa-full-tokens-ratio", "0.9")
NOT_PAUSED = {"frequency_penalty": 1e-6}
"""Too little to change what is said."""


def test_what_sglang_retracts_itself_a_prefill_server_computes_again(start, model) -> None:
    """It must where memory ends and no stream may be paused; another one is paused meanwhile."""
    chosen = random.Random(8)
    prompts = [[chosen.randrange(3, 259) for _ in range(480)] for _ in range(6)]
    with start(*COMMON[2:], *PREFILL, model=model) as served:
        expected = [served.outputs([prompt], max_new_tokens=TOKENS)[0] for prompt in prompts]
    decode = (*FORCED, *FULL, "--num-reserved-decode-tokens", "1")
    with pair(start, *COMMON, prefill=PREFILL, decode=decode, model=model) as both:
        for _ in range(ROUNDS):
            calls = [
                lambda p=p, n=n: both.generate(
                    p, max_new_tokens=TOKENS, **(NOT_PAUSED if n else {})
                )
                for n, p in enumerate(prompts)
            ]
            said = [answer.body["output_ids"] for answer in both.decode.together(calls)]
            assert said == expected
        retracted = both.decode.sglang_total("sglang:num_retracted_requests_total")
        paused = both.decode.total("tokenflow:preemptions_total")
        print(f"{retracted:.0f} retracted, {paused:.0f} paused")
        assert retracted > 0
        assert paused > 0
        assert both.decode.total("tokenflow:lost_streams_total") == 0
        both.decode.assert_clean()


@pytest.mark.parametrize("left_out", ["page", "window page", "request"])
def test_what_is_not_given_back_is_noticed(start, model, long_prompts, answers, left_out) -> None:
    """The controls: of one kind of buffers a stream finds what others have left there."""
    env = {"TOKENFLOW_TEST_BREAK": f"no-{left_out.replace(' ', '-')}-back"}
    broken = {"decode": (*FORCED, *SMALL), "program": BROKEN, "env": env}
    with pair(start, *COMMON, prefill=PREFILL, model=model, **broken) as both:
        told = (both.outputs(long_prompts, max_new_tokens=TOKENS) for _ in range(ROUNDS))
        assert any(each != answers for each in told)


@pytest.fixture(scope="module")
def drafting_model(tmp_path_factory):
    """One with a layer for drafts."""
    return make_tiny_compressed(tmp_path_factory.mktemp("compressed") / "v4-nextn", drafts=True)


@pytest.fixture(scope="module")
def undrafted(start, drafting_model, long_prompts) -> list[list[int]]:
    """What stock SGLang answers without speculation."""
    with start(*COMMON[2:], *PREFILL, model=drafting_model) as served:
        return served.outputs(long_prompts, max_new_tokens=TOKENS)


def with_drafts(both: Pair, prompts: list[list[int]]) -> tuple[list[list[int]], float]:
    """Tokens of all prompts, asked at once, and how many of them a step of drafts gave."""
    calls: list[Any] = [lambda p=p: both.generate(p, max_new_tokens=TOKENS) for p in prompts]
    told = [answer.body for answer in both.decode.together(calls)]
    steps = sum(each["meta_info"]["spec_verify_ct"] for each in told)
    accepted = sum(each["meta_info"]["spec_num_correct_drafts"] for each in told)
    return [each["output_ids"] for each in told], 1.0 + accepted / steps


@pytest.fixture(scope="module")
def undisturbed_acceptance(start, drafting_model, long_prompts, undrafted) -> float:
    """Tokens per step of a pair that is not disturbed."""
    flags = (*COMMON[2:], *DRAFTS)
    with pair(start, *flags, prefill=PREFILL, decode=PREFILL, model=drafting_model) as both:
        tokens, per_step = with_drafts(both, long_prompts)
        assert tokens == undrafted
        return per_step


AS_OFTEN = 0.96
"""At least, with pauses every few steps: the same prompts have the same drafts."""
DRAFTED = {"overlap": (), "no overlap": ("--disable-overlap-schedule",)}


@pytest.mark.parametrize("flags", DRAFTED.values(), ids=DRAFTED)
def test_with_drafts_tokens_are_those_of_the_undisturbed_run(
    start, drafting_model, long_prompts, undrafted, undisturbed_acceptance, flags
) -> None:
    """And drafts are accepted as often."""
    given = {"prefill": PREFILL, "decode": (*FORCED, *SMALL, *flags), "model": drafting_model}
    with pair(start, *COMMON, *DRAFTS, **given) as both:
        check(both, long_prompts, undrafted, drafts=True)
        tokens, per_step = with_drafts(both, long_prompts)
        assert tokens == undrafted
        print(f"{per_step:.3f} tokens per step, {undisturbed_acceptance:.3f} undisturbed")
        assert per_step >= AS_OFTEN * undisturbed_acceptance
        both.decode.assert_clean()


def test_lost_drafts_are_noticed(
    start, drafting_model, long_prompts, undrafted, undisturbed_acceptance
) -> None:
    """The control: the draft layer's window is left out of the copy, so fewer are accepted."""
    broken = {"program": BROKEN, "env": {"TOKENFLOW_TEST_BREAK": "no-drafts-copy"}}
    given = {"prefill": PREFILL, "decode": (*FORCED, *SMALL), "model": drafting_model}
    with pair(start, *COMMON, *DRAFTS, **given, **broken) as both:
        tokens, per_step = with_drafts(both, long_prompts)
        assert tokens == undrafted
        print(f"{per_step:.3f} tokens per step, {undisturbed_acceptance:.3f} undisturbed")
        assert per_step < 0.75 * undisturbed_acceptance


def test_drafts_of_the_first_token_are_noticed(
    start, drafting_model, long_prompts, undrafted, undisturbed_acceptance
) -> None:
    """The control: a resume drafts from what the prefill server sent, as after a retraction."""
    broken = {"program": BROKEN, "env": {"TOKENFLOW_TEST_BREAK": "first-drafts"}}
    given = {"prefill": PREFILL, "decode": (*FORCED, *SMALL), "model": drafting_model}
    with pair(start, *COMMON, *DRAFTS, **given, **broken) as both:
        tokens, per_step = with_drafts(both, long_prompts)
        assert tokens == undrafted
        print(f"{per_step:.3f} tokens per step, {undisturbed_acceptance:.3f} undisturbed")
        assert per_step < AS_OFTEN * undisturbed_acceptance
