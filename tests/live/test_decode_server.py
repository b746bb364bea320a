"""The decode server of a disaggregated pair, with `--scheduler tokenflow` on both servers.

Its streams are paused as SGLang retracts them there. What the pair says is what one server says.
"""

from __future__ import annotations

import functools
import json
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from identity.arena import Running
from identity.cases import controls, scenarios
from identity.scenario import Group
from identity.table import SCENARIOS
from servers.fixtures import BROKEN
from servers.meeting import Pair, pair

pytestmark = pytest.mark.engine

TOKENFLOW = ("--scheduler", "tokenflow")
FORCED = ("--tokenflow-policy", "forced:PreemptEvery")
AMPLE = ("--max-total-tokens", "4000")
SHARED = SCENARIOS["decode server"]
"""Whose servers several tests here ask."""
ROUNDS = 5


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


@scenarios(Group.DECODE)
def test_tokens_are_those_of_the_undisturbed_run(arena, request, name) -> None:
    shared = request.getfixturevalue("running") if name == SHARED.name else None
    arena.check(SCENARIOS[name], shared)


@controls(Group.DECODE)
def test_what_is_broken_on_purpose_is_noticed(arena, broken) -> None:
    arena.check_control(broken)


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

    with pair(start, *AMPLE, *SHARED.flags) as stock:
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
    decode = (*FORCED, "--max-total-tokens", "480", "--hicache-ratio", "1.3")
    late = {"program": BROKEN, "env": {"TOKENFLOW_TEST_BREAK": "blind-host"}}
    given = {"prefill": AMPLE, "decode": decode, **(late if seen == "late" else {})}
    with pair(start, *TOKENFLOW, **given) as both:
        for stream in (False, True):
            assert both.outputs(prompts[:8], stream=stream) == reference[:8]
        assert both.decode.total("tokenflow:preemptions_total") > 0
        both.decode.assert_clean()
