"""DeepSeek V4 on the decode server of a disaggregated pair, with `--scheduler tokenflow` on both.

SGLang keeps no copy of what it retracts of this model: a prefill server computes it again. A pause
keeps one of all its pools.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from identity.arena import Running
from identity.cases import controls, scenarios
from identity.scenario import Group
from identity.table import MODELS, SCENARIOS
from servers.meeting import Pair, pair

from tokenflow_sgl.engine.sglang.version import at_least

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.skipif(
        not at_least("0.5.23"),
        reason="this SGLang's DeepSeek V4 was not proved, and is refused",
    ),
]

MODEL = MODELS["v4"]
COMMON = ("--scheduler", "tokenflow", *MODEL.flags)
PREFILL = MODEL.ample
FORCED = ("--tokenflow-policy", "forced:PreemptEvery")
SHARED = SCENARIOS["decode: V4"]
"""Whose servers several tests here ask."""
TOKENS = MODEL.tokens
ROUNDS = 5


@pytest.fixture(scope="module")
def model(folder_of) -> Path:
    """A tiny DeepSeek V4."""
    found: Path = folder_of("v4")
    return found


@pytest.fixture(scope="module")
def answers(arena) -> list[list[int]]:
    """What stock SGLang answers to the long prompts."""
    found: list[list[int]] = arena.undisturbed("v4")
    return found


@pytest.fixture(scope="module")
def running(arena) -> Iterator[Running]:
    """A pair whose decode server preempts every few steps."""
    with arena.running(SHARED) as servers:
        yield servers
        servers.served.assert_clean()


@pytest.fixture(scope="module")
def forced(running) -> Pair:
    """The same pair."""
    found: Pair = running.asked
    return found


@scenarios(Group.COMPRESSED_DECODE)
def test_tokens_are_those_of_the_undisturbed_run(arena, request, name) -> None:
    shared = request.getfixturevalue("running") if name == SHARED.name else None
    arena.check(SCENARIOS[name], shared)


@controls(Group.COMPRESSED_DECODE)
def test_what_is_broken_on_purpose_is_noticed(arena, broken) -> None:
    arena.check_control(broken)


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
    with pair(start, *COMMON, prefill=PREFILL, decode=SHARED.decode, model=model) as both:
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
