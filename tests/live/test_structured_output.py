"""What follows a grammar is the same in every batch, and with pauses that of undisturbed SGLang.

A grammar often leaves tokens that a model never gives by itself. Where their logits are equal, as
those of the tiny models once were, stock SGLang's greedy choice depends on the batch: it takes the
first of them by argmax where all requests are greedy, and one by a partial sort where another one
is sampled. So a comparison needs a model without equal logits, and a control that shows why.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import random
import shutil
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from servers.fixtures import BROKEN
from servers.meeting import Pair, pair

from tokenflow_sgl_emulator.tokenizer import EOS_ID, MIN_VOCAB

pytestmark = pytest.mark.engine

FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
# Else random models fill JSON with white space.
DENSE = ("--constrained-json-disable-any-whitespace",)
AMPLE = (*DENSE, "--max-total-tokens", "60000")
SMALL = (*DENSE, "--max-total-tokens", "704", "--hicache-ratio", "4")
LATE = {"TOKENFLOW_EMU_LATE_COPIES": "4"}
ROUNDS = 4
TOKENS = 120
"""More than any of these grammars allows."""
FAR = 8_000
"""Tokens of an answer that no machine completes before it is broken off."""
SECONDS = 120.0

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "numbers": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 9999},
            "minItems": 4,
            "maxItems": 6,
        },
    },
    "required": ["name", "numbers"],
}
LAMP = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["red", "green", "blue"]},
        "on": {"type": "boolean"},
        "n": {"type": "integer", "minimum": -99, "maximum": 99},
    },
    "required": ["kind", "on", "n"],
}
STRUCTURED: tuple[dict[str, Any], ...] = (
    {"json_schema": json.dumps(PERSON)},
    {"json_schema": json.dumps(PERSON)},
    {"json_schema": json.dumps(LAMP)},
    {"regex": "([a-z]{3,8} ){4,9}[0-9]{3,12}"},
    {"ebnf": 'root ::= item ("," item){5,9}\nitem ::= [a-f]+ [0-9]{2,4}'},
)
GREEDY: tuple[dict[str, Any], ...] = ({}, {})
SAMPLED: tuple[dict[str, Any], ...] = (
    {"temperature": 0.9, "top_p": 0.9},
    {"temperature": 0.8, "top_k": 20},
    {"temperature": 0.9, "min_p": 0.1},
)


@pytest.fixture(scope="module")
def stock(start):
    """Stock SGLang, with memory for all streams."""
    with start(*AMPLE) as served:
        yield served


@pytest.fixture(scope="module")
def alone(stock, prompts) -> list[list[int]]:
    """What stock SGLang answers to each of `STRUCTURED` while it serves nothing else."""
    return one_by_one(stock, prompts)


def ask(served, prompt: list[int], **how: Any) -> list[int]:
    answer = served.generate(prompt, **{"max_new_tokens": TOKENS, **how})
    assert answer.status == 200, answer
    output: list[int] = answer.body["output_ids"]
    return output


def one_by_one(served, prompts, **more: Any) -> list[list[int]]:
    return [ask(served, p, **how, **more) for p, how in zip(prompts, STRUCTURED, strict=False)]


def at_once(served, prompts, **more: Any) -> list[list[int]]:
    with concurrent.futures.ThreadPoolExecutor(len(STRUCTURED)) as pool:
        asked = [
            pool.submit(ask, served, prompt, **how, **more)
            for prompt, how in zip(prompts, STRUCTURED, strict=False)
        ]
        return [each.result() for each in asked]


def mixed(served, prompts, seed: int, **more: Any) -> dict[int, list[int]]:
    """Answers to some of `STRUCTURED`, by number: beside others, each at a moment of its own.

    In every other round their grammars are compiled anew.
    """
    rng = random.Random(seed)
    if seed % 2:
        served.flush_when_idle()
    requests = [*STRUCTURED, *GREEDY, *SAMPLED]
    chosen = rng.sample(range(len(requests)), rng.randrange(5, len(requests) + 1))

    def later(number: int, seconds: float) -> list[int]:
        time.sleep(seconds)
        return ask(served, prompts[number], **requests[number], **more)

    with concurrent.futures.ThreadPoolExecutor(len(chosen)) as pool:
        asked = {
            number: pool.submit(later, number, rng.choice((0.0, 0.0, rng.uniform(0.0, 0.5))))
            for number in chosen
        }
        answers = {number: each.result() for number, each in asked.items()}
    return {number: answers[number] for number in answers if number < len(STRUCTURED)}


def running(served) -> int:
    """Requests that run."""
    with urllib.request.urlopen(f"{served.server.url}/v1/loads", timeout=SECONDS) as response:
        return sum(load["num_running_reqs"] for load in json.load(response)["loads"])


@contextlib.contextmanager
def beside(served, prompts, *requests: dict[str, Any]) -> Iterator[None]:
    """While these run, which do not end before."""
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        asked = [
            pool.submit(ask, served, prompt, **how, max_new_tokens=FAR, ignore_eos=True)
            for prompt, how in zip(prompts[-len(requests) :], requests, strict=True)
        ]
        try:
            end = time.monotonic() + SECONDS
            while running(served) < len(requests):
                assert time.monotonic() < end, "they do not run"
                assert not any(each.done() for each in asked), "they run no more"
                time.sleep(0.1)
            yield
            assert not any(each.done() for each in asked), "they have run meanwhile"
        finally:
            served.post("/abort_request", {"abort_all": True})
    served.flush_when_idle()


def test_in_stock_sglang_it_does_not_depend_on_the_batch(stock, alone, prompts) -> None:
    assert len({tuple(answer) for answer in alone}) == len(alone)
    assert {answer[-1] for answer in alone} == {EOS_ID}, "the grammars end them"
    assert at_once(stock, prompts) == alone
    for others in (GREEDY, SAMPLED, SAMPLED[1:2]):
        with beside(stock, prompts, *others):
            assert at_once(stock, prompts) == alone
            assert one_by_one(stock, prompts) == alone


@pytest.fixture(scope="module")
def tied(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, but all tokens that it does not give by itself have the same logit."""
    folder = tmp_path_factory.mktemp("tied") / "qwen3"
    shutil.copytree(models / "qwen3", folder)
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["lm_head.weight"][:MIN_VOCAB, 1:] = 0.0  # column 0 is the bias that keeps them back
    save_file(weights, path, metadata={"format": "pt"})
    return folder


@pytest.mark.slow
def test_among_equal_logits_stock_sglang_chooses_by_what_else_is_served(
    start, tied, prompts
) -> None:
    """The control: nothing of ours runs here, and answers to the same requests are not the same."""
    with start(*AMPLE, model=tied) as served:
        quiet = one_by_one(served, prompts)
        with beside(served, prompts, *GREEDY):
            assert one_by_one(served, prompts) == quiet
        with beside(served, prompts, *SAMPLED):
            assert one_by_one(served, prompts) != quiet
        assert one_by_one(served, prompts) == quiet


def undisturbed(served, alone, prompts, rounds: int = ROUNDS, **more: Any) -> None:
    """Rounds of forced pauses change no token of what follows a grammar."""
    before = served.total("tokenflow:resumes_total")
    for seed in range(rounds):
        for number, answer in mixed(served, prompts, seed, **more).items():
            assert answer == alone[number], (seed, STRUCTURED[number])
    assert served.total("tokenflow:resumes_total") - before >= 5 * rounds, "they were disturbed"
    assert served.total("tokenflow:policy_errors_total") == 0
    served.assert_clean()


@pytest.mark.parametrize(
    "overlap",
    ["overlap", pytest.param("no-overlap", marks=pytest.mark.slow)],
)
def test_pauses_in_mixed_batches_change_no_token(start, alone, prompts, overlap) -> None:
    flags = ("--disable-overlap-schedule",) if overlap == "no-overlap" else ()
    with start(*FORCED, *SMALL, *flags, env=LATE) as served:
        undisturbed(served, alone, prompts)


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["grammar-behind", "grammar-anew"])
def test_a_grammar_that_is_not_where_the_stream_is_is_noticed(
    start, alone, prompts, broken
) -> None:
    with start(*FORCED, *SMALL, program=BROKEN, env={"TOKENFLOW_TEST_BREAK": broken}) as served:
        got = (
            served.together(
                [
                    lambda p=p, how=how: served.generate(p, max_new_tokens=TOKENS, **how)
                    for p, how in zip(prompts, STRUCTURED, strict=False)
                ]
            )
            for _ in range(ROUNDS)
        )
        assert any(
            [answer.body.get("output_ids") for answer in answers] != alone for answers in got
        )


@pytest.mark.slow
def test_pauses_of_streams_with_drafts_change_no_token(start, drafting, prompts) -> None:
    """A step gives several tokens then, and the grammar cuts off what comes after its end."""
    eagle = (
        *("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3"),
        *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
        *("--speculative-draft-model-path", str(drafting / "eagle")),
    )
    # Equal requests only: min_p and the like are not for speculation.
    with start(*AMPLE, *eagle, model=drafting / "llama") as served:
        expected = one_by_one(served, prompts)
        assert at_once(served, prompts) == expected
    memory = (*DENSE, "--max-total-tokens", "960", "--hicache-ratio", "4")
    with start(*FORCED, *memory, *eagle, model=drafting / "llama", env=LATE) as served:
        for _ in range(ROUNDS):
            assert at_once(served, prompts) == expected
        assert served.total("tokenflow:resumes_total") >= 5 * ROUNDS
        served.assert_clean()


@pytest.mark.slow
def test_pauses_while_it_thinks_change_no_token(start, thinker, prompts) -> None:
    """The grammar begins when the thinking ends, which a pause must not forget."""
    parser = ("--reasoning-parser", "deepseek-r1")
    with start(*AMPLE, *parser, model=thinker) as served:
        expected = one_by_one(served, prompts, require_reasoning=True)
        plain = one_by_one(served, prompts)
        assert expected != plain
    with start(*FORCED, *SMALL, *parser, model=thinker, env=LATE) as served:
        undisturbed(served, expected, prompts, require_reasoning=True)


@pytest.mark.slow
def test_pauses_on_a_decode_server_change_no_token(start, prompts) -> None:
    """There the grammar takes its first token from the prefill server."""

    def said(both: Pair) -> list[list[int]]:
        asked = [
            lambda p=p, how=how: both.generate(p, max_new_tokens=TOKENS, **how)
            for p, how in zip(prompts, STRUCTURED, strict=False)
        ]
        return [answer.body["output_ids"] for answer in both.decode.together(asked)]

    with pair(start, *AMPLE) as stock:
        expected = said(stock)
        assert said(stock) == expected
    flags, decode = ("--scheduler", "tokenflow"), (*DENSE, "--max-total-tokens", "704")
    with pair(start, *flags, prefill=AMPLE, decode=(*FORCED[2:], *decode), env=LATE) as both:
        for _ in range(ROUNDS):
            assert said(both) == expected
        assert both.decode.total("tokenflow:preemptions_total") >= 5 * ROUNDS
        both.decode.assert_clean()
