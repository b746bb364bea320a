"""Every feature of a request survives preemption: the answer is that of undisturbed SGLang."""

from __future__ import annotations

import concurrent.futures
import json
import random
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

pytestmark = pytest.mark.engine

FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
COMMON = ("--enable-deterministic-inference",)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "numbers": {"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 6},
    },
    "required": ["name", "numbers"],
}
# SGLang applies additive and multiplicative penalties in the order of a set of classes, which
# changes from process to process; so they are not combined here.
PENALTIES: tuple[dict[str, Any], ...] = (
    {"frequency_penalty": 0.7, "presence_penalty": 0.3, "min_new_tokens": 20},
    {"repetition_penalty": 1.2},
)
TURNS = 4
"""A machine may stand still until all is answered: so many turns, at most, to come before that."""


@pytest.fixture(scope="module")
def stock(start, models):
    """Stock SGLang, with memory for all streams."""
    lora = f"tiny={models / 'lora'}"
    flags = ("--max-total-tokens", "4000", "--lora-paths", lora)
    with start(*COMMON, *flags) as served:
        yield served


@pytest.fixture(scope="module")
def forced(start, models):
    """The scheduler under forced preemption, with less device memory than the streams need."""
    lora = f"tiny={models / 'lora'}"
    flags = ("--max-total-tokens", "704", "--hicache-ratio", "4", "--lora-paths", lora)
    with start(*COMMON, *FORCED, *flags) as served:
        yield served
        served.assert_clean()


def answers(served, prompts, each: Sequence[dict[str, Any]] = (), **how: Any) -> list[Any]:
    """Bodies of the answers to all prompts, served at the same time; `each`: own parameters."""
    asked = zip(prompts, each or [{}] * len(prompts), strict=True)
    got = served.together(
        [lambda p=p, own=own: served.generate(p, **how, **own) for p, own in asked]
    )
    assert {answer.status for answer in got} == {200}
    return [answer.body for answer in got]


def both(stock, forced, prompts, **how: Any) -> tuple[list[Any], list[Any]]:
    """Undisturbed and disturbed answers, at the same time; the latter really were disturbed.

    That stock SGLang's do not depend on what else is served, test_servers.py shows to the last bit.
    """
    before = forced.total("tokenflow:resumes_total")
    with concurrent.futures.ThreadPoolExecutor(2) as servers:
        undisturbed, disturbed = servers.map(
            lambda served: answers(served, prompts, **how), (stock, forced)
        )
    assert forced.total("tokenflow:resumes_total") - before >= len(prompts)
    return undisturbed, disturbed


def ids(bodies: list[Any]) -> list[list[int]]:
    return [body["output_ids"] for body in bodies]


def test_seeded_sampling(stock, forced, prompts) -> None:
    how = {"temperature": 0.9, "top_p": 0.95, "sampling_seed": 11}
    undisturbed, disturbed = both(stock, forced, prompts, **how)
    assert ids(disturbed) == ids(undisturbed)
    greedy = answers(stock, prompts[:3])
    assert ids(greedy) != ids(undisturbed)[:3], "the temperature must have an effect"


def test_log_probabilities(stock, forced, prompts) -> None:
    undisturbed, disturbed = both(stock, forced, prompts, return_logprob=True)
    assert ids(disturbed) == ids(undisturbed)
    for one, other in zip(undisturbed, disturbed, strict=True):
        expected = [value for value, *_ in one["meta_info"]["output_token_logprobs"]]
        got = [value for value, *_ in other["meta_info"]["output_token_logprobs"]]
        assert got == pytest.approx(expected, abs=2e-4)


@pytest.mark.slow
def test_log_probabilities_do_not_recompute_the_output(forced, prompts) -> None:
    before = forced.total("tokenflow:resume_recomputed_tokens_sum")
    resumes = forced.total("tokenflow:resumes_total")
    forced.together([lambda p=p: forced.generate(p, return_logprob=True) for p in prompts])
    recomputed = forced.total("tokenflow:resume_recomputed_tokens_sum") - before
    assert recomputed <= 2 * (forced.total("tokenflow:resumes_total") - resumes)


def test_stop_strings(stock, forced, prompts) -> None:
    # A piece of each answer's own text, from its middle.
    texts = [body["text"] for body in answers(stock, prompts)]
    stops = [text[len(text) // 2 : len(text) // 2 + 3] for text in texts]
    own = [{"stop": text} for text in stops]
    cut, expected = (answers(served, prompts, own) for served in (forced, stock))
    assert [b["text"] for b in cut] == [b["text"] for b in expected]
    assert {b["meta_info"]["finish_reason"]["type"] for b in cut} == {"stop"}


@pytest.mark.slow
def test_json_schema(stock, forced, prompts) -> None:
    how = {"json_schema": json.dumps(SCHEMA), "max_new_tokens": 120}
    undisturbed, disturbed = both(stock, forced, prompts[:8], **how)
    assert [b["text"] for b in disturbed] == [b["text"] for b in undisturbed]
    finished = [b for b in disturbed if b["meta_info"]["finish_reason"]["type"] == "stop"]
    for body in finished:
        assert set(json.loads(body["text"])) == {"name", "numbers"}


def test_parallel_samples(stock, forced, prompts) -> None:
    body = {
        "input_ids": prompts[0],
        "sampling_params": {
            "n": 4,
            "temperature": 0.8,
            "sampling_seed": 3,
            "max_new_tokens": 48,
        },
    }
    undisturbed = stock.post("/generate", body).body
    disturbed = forced.post("/generate", body).body
    assert ids(disturbed) == ids(undisturbed)
    assert len(disturbed) == 4


def test_lora(stock, forced, prompts) -> None:
    undisturbed, disturbed = both(stock, forced, prompts[:6], lora_path="tiny")
    assert ids(disturbed) == ids(undisturbed)
    plain = answers(stock, prompts[:6])
    assert ids(plain) != ids(undisturbed), "the adapter must have an effect"


@pytest.mark.slow
def test_shared_prefixes(stock, forced, prompts) -> None:
    shared = [prompts[0] + [50 + i, 60, 70 + i] for i in range(10)]
    undisturbed, disturbed = both(stock, forced, shared)
    assert ids(disturbed) == ids(undisturbed)


def test_disconnected_clients_leak_nothing(forced, prompts, reference) -> None:
    import http.client

    rng = random.Random(1)
    for prompt in prompts:
        connection = http.client.HTTPConnection("127.0.0.1", forced.server.port, timeout=120)
        body = {
            "input_ids": prompt,
            "stream": True,
            "sampling_params": {"temperature": 0, "max_new_tokens": 300},
        }
        connection.request(
            "POST", "/generate", json.dumps(body), {"content-type": "application/json"}
        )
        connection.getresponse().read(300)
        time.sleep(rng.uniform(0.0, 0.05))
        connection.close()
    assert forced.outputs(prompts) == reference
    forced.assert_clean()


def test_random_aborts_leave_the_others_alone(forced, prompts, reference) -> None:
    rng = random.Random(2)
    answered = [threading.Event() for _ in range(10)]

    def aborted(number: int) -> Any:
        try:
            return forced.generate(
                prompts[number % 12], rid=f"gone-{number}", max_new_tokens=2000, ignore_eos=True
            )
        finally:
            answered[number].set()

    def abort(number: int) -> Any:
        time.sleep(rng.uniform(0.1, 1.5))
        # One that comes before its request aborts nothing.
        while not answered[number].is_set():
            forced.post("/abort_request", {"rid": f"gone-{number}"})
            answered[number].wait(0.5)

    calls = [lambda n=n: aborted(n) for n in range(10)]
    calls += [lambda n=n: abort(n) for n in range(10)]
    calls += [lambda p=p: forced.generate(p) for p in prompts]
    answers = forced.together(calls)
    assert [a.body["output_ids"] for a in answers[20:]] == reference
    for answer in answers[:10]:
        assert answer.body["meta_info"]["finish_reason"]["type"] in ("abort", "length")
    forced.assert_clean()


@pytest.mark.slow
def test_flush_is_refused_while_streams_are_paused_and_works_after(forced, prompts) -> None:
    for _ in range(TURNS):
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            asked = [pool.submit(forced.generate, p, max_new_tokens=150) for p in prompts]
            refused = False
            while not refused and not all(each.done() for each in asked):
                time.sleep(0.05)
                refused = forced.post("/flush_cache", None).status == 400
        assert {len(each.result().body["output_ids"]) for each in asked} == {150}
        if refused:
            break
    else:
        raise AssertionError("no flush is refused")
    forced.flush_when_idle()


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_pause_and_continue_generation(forced, prompts, reference, mode) -> None:
    def interrupt() -> Any:
        time.sleep(0.25)
        forced.post("/pause_generation", {"mode": mode})
        time.sleep(0.25)
        return forced.post("/continue_generation", {})

    calls = [lambda p=p: forced.generate(p) for p in prompts]
    *answers, _ = forced.together([*calls, interrupt])
    assert [a.body["output_ids"] for a in answers] == reference


@pytest.mark.slow
def test_penalties(start, prompts) -> None:
    """Without overlap, where SGLang counts every token at once."""
    plain = ("--disable-overlap-schedule", "--max-total-tokens", "4000")
    with start(*plain) as stock:
        undisturbed = [ids(answers(stock, prompts, **how)) for how in PENALTIES]
        plain_answers = ids(answers(stock, prompts))
    assert undisturbed[0] != plain_answers, "the penalties must have an effect"
    assert undisturbed[1] != plain_answers
    with start(*FORCED, "--disable-overlap-schedule", "--max-total-tokens", "704") as forced:
        for how, expected in zip(PENALTIES, undisturbed, strict=True):
            assert ids(answers(forced, prompts, **how)) == expected
        assert forced.total("tokenflow:resumes_total") >= 8 * len(prompts)
        forced.assert_clean()
