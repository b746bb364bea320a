"""The decode server of a disaggregated pair, with `--scheduler tokenflow` on both servers.

Its streams are paused as SGLang retracts them there. What the pair says is what one server says.
"""

from __future__ import annotations

import functools
import json
import random
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest
from servers.fixtures import BROKEN
from servers.meeting import Pair, pair
from servers.tuned import CHECK_RANKS

pytestmark = pytest.mark.engine

TOKENFLOW = ("--scheduler", "tokenflow")
FORCED = (*TOKENFLOW, "--tokenflow-policy", "forced:PreemptEvery")
AMPLE = ("--max-total-tokens", "4000")
# Twelve streams need about 1,350 tokens.
SMALL = ("--max-total-tokens", "704")
DETERMINISTIC = ("--enable-deterministic-inference",)
"""So that a seed says what is drawn."""
TENSORS = ("--disaggregation-decode-retraction-backup", "cpu_tensor")
TWO_RANKS = ("--tp-size", "2")
DP_ATTENTION = (
    *("--enable-dp-attention", "--dp-size", "2", "--tp-size", "2"),
    "--no-enable-tp-lm-head-all-to-all",  # an operator of SGLang's that the CPU does not have
)
LATE = {"TOKENFLOW_EMU_LATE_COPIES": "4"}
"""KV of resumed streams comes when it is waited for, and not before."""
ROUNDS = 5


@dataclass(frozen=True)
class Setting:
    """One that both servers are started with.

    Attributes:
        model: The tiny model.
        flags: Of both.
        decode: Of the decode server alone.
    """

    model: str = "qwen3"
    flags: tuple[str, ...] = ()
    decode: tuple[str, ...] = SMALL


SETTINGS = {
    "pages of 16, no overlap": Setting(
        flags=("--page-size", "16"), decode=(*SMALL, "--disable-overlap-schedule")
    ),
    "tensors, no radix cache": Setting(decode=(*SMALL, *TENSORS, "--disable-radix-cache")),
    "two ranks": Setting(flags=TWO_RANKS, decode=(*SMALL, CHECK_RANKS)),
    "DP attention": Setting(flags=DP_ATTENTION, decode=("--max-total-tokens", "480")),
    "MLA, pages of 16": Setting("deepseek", ("--page-size", "16")),
    "sliding windows": Setting("qwen3-window"),
    "convolutions": Setting("lfm2", ("--max-mamba-cache-size", "48")),
    "deltas": Setting("qwen3.5", ("--max-mamba-cache-size", "60", "--mamba-track-interval", "64")),
    "priorities": Setting(flags=("--enable-priority-scheduling", "--disable-priority-preemption")),
    "tokenizer workers": Setting(flags=("--tokenizer-worker-num", "2")),
}


@pytest.fixture(scope="module")
def forced(start):
    """A pair whose decode server preempts every few steps."""
    flags = (*TOKENFLOW, *DETERMINISTIC)
    with pair(start, *flags, prefill=AMPLE, decode=(*FORCED[2:], *SMALL), env=LATE) as both:
        yield both
        both.decode.assert_clean()


def check(
    both: Pair, prompts: list[list[int]], reference: list[list[int]], *, drafts: bool = False
) -> None:
    """What is said is `reference`, after many pauses.

    drafts: A stream that drains may end, for the last step gives it several tokens.
    """
    for stream in (False, True):
        assert both.outputs(prompts, stream=stream) == reference
    preempted = both.decode.total("tokenflow:preemptions_total")
    print(f"{preempted:.0f} preemptions")
    assert preempted >= 4 * len(prompts), "the test must disturb"
    ended = preempted - both.decode.total("tokenflow:resumes_total")
    assert 0 <= ended <= (2 * len(prompts) if drafts else 0)
    assert both.decode.total("tokenflow:policy_errors_total") == 0
    assert both.decode.total("tokenflow:lost_streams_total") == 0


def test_tokens_are_those_of_the_undisturbed_run(forced, prompts, reference) -> None:
    check(forced, prompts, reference)


@pytest.mark.slow
def test_a_request_keeps_what_it_asked_for(start, forced, prompts) -> None:
    """Sampling with a seed, its length, penalties: as a pair says that is not disturbed."""
    penalties = {"frequency_penalty": 0.7, "presence_penalty": 0.3, "min_new_tokens": 20}
    asked: list[dict[str, Any]] = [
        {"temperature": 0.9, "top_p": 0.95, "sampling_seed": 11},
        {"ignore_eos": True, "max_new_tokens": 40},
    ]

    def said(both: Pair) -> list[list[list[int]]]:
        # Those with penalties are not paused; if there were more, SGLang would retract some.
        some = [
            lambda p=p, n=n: both.generate(p, **(penalties if n < 3 else {}))
            for n, p in enumerate(prompts)
        ]
        answers = both.decode.together(some)
        mixed = [answer.body["output_ids"] for answer in answers]
        return [mixed, *(both.outputs(prompts, **how) for how in asked)]

    with pair(start, *AMPLE, *DETERMINISTIC) as stock:
        expected = said(stock)
    assert said(forced) == expected
    assert len({json.dumps(each) for each in expected}) == 3, "each asks for something else"
    assert {len(each) for each in expected[2]} == {40}


def hang_up(both: Pair, prompt: list[int], seconds: float) -> None:
    """Ask both servers, and leave after so long."""
    body = {
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": both.port,
        "bootstrap_room": random.randrange(10**6, 10**9),
    }
    threads = [
        threading.Thread(target=served.leave, args=(prompt, seconds), kwargs=body)
        for served in (both.prefill, both.decode)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_aborted_streams_leave_nothing(forced, prompts, reference) -> None:
    """Whether they wait, run, drain or are paused."""
    threads = [
        threading.Thread(target=hang_up, args=(forced, prompt, 0.05 * number))
        for number, prompt in enumerate(prompts)
    ]
    for thread in threads:
        thread.start()
    assert forced.outputs(prompts[:4]) == reference[:4]
    forced.decode.post("/abort_request", {"abort_all": True})
    for thread in threads:
        thread.join()
    forced.decode.flush_when_idle()
    for name in ("running_streams", "paused_streams", "waiting_streams"):
        forced.decode.wait_until(name, 0)
    assert forced.outputs(prompts) == reference
    assert forced.decode.total("tokenflow:lost_streams_total") == 0


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_a_pause_of_the_engine_keeps_the_answers(forced, prompts, reference, mode) -> None:
    """With retract SGLang drops all KV, so that a prefill server computes it anew."""
    decode = forced.decode

    def interrupt(preempted: float) -> bool:
        decode.wait_for("preemptions_total", preempted)
        decode.post("/pause_generation", {"mode": mode})
        time.sleep(0.3)
        flushed = decode.post("/flush_cache", None).status == 200
        decode.post("/continue_generation", {})
        return flushed

    calls = [lambda p=p: forced.generate(p) for p in prompts]
    for _ in range(ROUNDS):
        before = decode.total("tokenflow:preemptions_total")
        interrupted = functools.partial(interrupt, before + 1)
        *answers, flushed = decode.together([*calls, interrupted])
        assert [answer.body["output_ids"] for answer in answers] == reference
        # On a busy machine all may have ended before the pause, and then anything can be flushed.
        preempted = decode.total("tokenflow:preemptions_total") > before
        if preempted and flushed == (mode == "retract"):
            break
    assert preempted, "the test must disturb"
    assert flushed == (mode == "retract")


@pytest.mark.slow
def test_an_abort_in_a_pause_ends_what_waits_to_be_computed_again(forced, prompts) -> None:
    decode = forced.decode

    def interrupt(preempted: float) -> None:
        decode.wait_for("preemptions_total", preempted)
        decode.post("/pause_generation", {"mode": "retract"})
        time.sleep(0.3)
        decode.post("/abort_request", {"abort_all": True})
        decode.post("/continue_generation", {})

    calls = [lambda p=p: forced.generate(p, max_new_tokens=200) for p in prompts]
    for _ in range(ROUNDS):
        before = decode.total("tokenflow:preemptions_total")
        interrupted = functools.partial(interrupt, before + 1)
        *answers, _ = decode.together([*calls, interrupted])
        # What was aborted before its KV had come is answered with an error.
        begun = [answer.body["meta_info"] for answer in answers if answer.status == 200]
        reasons = [meta["finish_reason"]["type"] for meta in begun]
        if "abort" in reasons:
            break
    assert "abort" in reasons
    assert decode.total("tokenflow:lost_streams_total") == 0
    decode.assert_clean()


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_other_settings(start, models, prompts, name) -> None:
    setting = SETTINGS[name]
    model = models / setting.model
    states = setting.flags if setting.model in ("lfm2", "qwen3.5") else ()
    with start(*AMPLE, *states, model=model) as served:
        expected = [served.outputs([prompt])[0] for prompt in prompts]
    decode = (*FORCED[2:], *setting.decode)
    given = {"prefill": AMPLE, "decode": decode, "model": model}
    with pair(start, *TOKENFLOW, *setting.flags, **given) as both:
        check(both, prompts, expected)
        both.decode.assert_clean()


CHAIN = (
    *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1"),
    *("--speculative-num-draft-tokens", "4", "--max-running-requests", "16"),
)
TREE = (*CHAIN, "--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "target", "draft", "drafts"),
    [
        ("EAGLE", "llama", "eagle", CHAIN),
        ("EAGLE", "llama", "eagle", TREE),
        ("EAGLE3", "llama", "eagle3", CHAIN),
        ("NEXTN", "llama", "mtp", CHAIN),
        ("EAGLE3", "windows", "windows-eagle3", CHAIN),
        ("NEXTN", "windows", "windows-eagle-window", CHAIN),
    ],
    ids=["eagle", "eagle in trees", "eagle3", "nextn", "windows, eagle3", "windows, nextn"],
)
def test_speculation(start, drafting, prompts, algorithm, target, draft, drafts) -> None:
    """Drafts are verified: what a stream says does not depend on what is kept of its drafts."""
    model = drafting / target
    path = ("--speculative-draft-model-path", str(drafting / draft))
    flags = (*TOKENFLOW, "--speculative-algorithm", algorithm, *path, *drafts)
    with start(*AMPLE, model=model) as served:
        expected = served.outputs(prompts)

    def per_step(both: Pair) -> float:
        told = both.decode.together([lambda p=p: both.generate(p) for p in prompts])
        steps = sum(answer.body["meta_info"]["spec_verify_ct"] for answer in told)
        drafts = sum(answer.body["meta_info"]["spec_num_correct_drafts"] for answer in told)
        return 1.0 + drafts / steps

    with pair(start, *flags, prefill=AMPLE, decode=AMPLE, model=model) as both:
        undisturbed = per_step(both)
    decode = (*FORCED[2:], "--max-total-tokens", "960")
    with pair(start, *flags, prefill=AMPLE, decode=decode, model=model) as both:
        check(both, prompts, expected, drafts=True)
        print(f"{undisturbed:.3f} tokens per step undisturbed, {per_step(both):.3f} disturbed")
        both.decode.assert_clean()


@pytest.mark.slow
def test_the_shipped_policy_takes_turns(start, prompts, reference) -> None:
    """More readers than the memory holds: streams are paused, and SGLang retracts none."""
    reader = {"custom_params": {"tokenflow_rate": 10}, "stream": True}
    decode = ("--max-total-tokens", "560")
    with pair(start, *TOKENFLOW, prefill=AMPLE, decode=decode) as both:
        for _ in range(ROUNDS):
            assert both.outputs(prompts, **reader) == reference
        paused = both.decode.total("tokenflow:preemptions_total")
        retracted = both.decode.sglang_total("sglang:num_retracted_requests_total")
        print(f"{paused:.0f} paused, {retracted:.0f} retracted")
        assert paused > 0
        both.decode.assert_clean()


@pytest.mark.slow
@pytest.mark.parametrize("seen", ["before", "late"])
def test_a_full_host_pauses_fewer(start, prompts, reference, seen) -> None:
    """KV of few streams fits there: others run on with the memory that they have.

    Seen late: a stream has left the batch by then, and comes back to it.
    """
    # Eight streams need about 900 tokens: 480 are on the device, 624 on the host.
    decode = (*FORCED[2:], "--max-total-tokens", "480", "--hicache-ratio", "1.3")
    late = {"program": BROKEN, "env": {"TOKENFLOW_TEST_BREAK": "blind-host"}}
    given = {"prefill": AMPLE, "decode": decode, **(late if seen == "late" else {})}
    with pair(start, *TOKENFLOW, **given) as both:
        for stream in (False, True):
            assert both.outputs(prompts[:8], stream=stream) == reference[:8]
        assert both.decode.total("tokenflow:preemptions_total") > 0
        both.decode.assert_clean()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "name"),
    [
        # What is computed in the step in flight is dropped then. The state has gone on, though.
        ("no-drain", "convolutions"),
        ("no-first-tensor", "tensors, no radix cache"),
        ("no-decode-landing", "pages of 16, no overlap"),
    ],
)
def test_controls_are_noticed(start, models, prompts, broken, name) -> None:
    setting = SETTINGS[name]
    model = models / setting.model
    states = setting.flags if setting.model == "lfm2" else ()
    with start(*AMPLE, *states, model=model) as served:
        expected = [served.outputs([prompt])[0] for prompt in prompts]
    decode = (*FORCED[2:], *setting.decode)
    broken_server = {"program": BROKEN, "env": {**LATE, "TOKENFLOW_TEST_BREAK": broken}}
    given = {"prefill": AMPLE, "decode": decode, "model": model, **broken_server}
    with pair(start, *TOKENFLOW, *setting.flags, **given) as both:
        assert any(both.outputs(prompts) != expected for _ in range(ROUNDS))
