"""The attacker's own eyes: an answer that lost, repeated or changed a token is noticed."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from typing import Any

import pytest
from attacker.asking import COMPLETIONS, GENERATE, Ask, draw
from attacker.journal import Journal
from attacker.replies import FULL, Allowed, Reply, judge
from attacker.truth import LONGEST, Subject

WORDS = tuple(f" w{number % 40}" for number in range(LONGEST))
SUBJECT = Subject("prompt 0", (1, 2), WORDS, tuple(range(LONGEST)), (-1.0,) * LONGEST)
ASK = Ask(GENERATE, b"", SUBJECT, tokens=4, shown=4, stream=True)


def event(ids: list[int], reason: dict[str, Any] | None = None, **other: Any) -> str:
    text = "".join(WORDS[token] for token in ids)
    about = {"finish_reason": reason, "completion_tokens": len(ids)}
    return json.dumps({"text": text, "output_ids": ids, "meta_info": about, **other})


def streamed(*events: str) -> Reply:
    reply = Reply(200)
    for each in events:
        reply.event(each)
    return reply


LENGTH, STOP, ABORT = ({"type": each} for each in ("length", "stop", "abort"))
GOOD = (event([0]), event([0, 1, 2]), event([0, 1, 2, 3], LENGTH))
WRONG = {
    "a token is lost": (event([0]), event([0, 2, 3], LENGTH)),
    "a token comes twice": (event([0]), event([0, 1, 1, 2], LENGTH)),
    "what was said is taken back": (event([0, 1]), event([0, 2]), GOOD[-1]),
    "it goes on after its end": (*GOOD, event([0, 1, 2, 3, 4], LENGTH)),
    "it ends too early": (event([0, 1, 2], LENGTH),),
    "it does not end": GOOD[:-1],
    "nobody aborted it": (event([0, 1], ABORT),),
    "it stops for no reason": (event([0, 1, 2, 3], STOP),),
    "there is one sample too many": (*GOOD, event([0], LENGTH, index=1)),
    "it is refused": (json.dumps({"error": {"message": "no"}}),),
    "nothing comes": (),
}


def test_what_is_right_is_right() -> None:
    assert judge(ASK, streamed(*GOOD), aborted=False) is None


@pytest.mark.parametrize("events", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_noticed(events) -> None:
    assert judge(ASK, streamed(*events), aborted=False)


def test_what_was_aborted_is_a_beginning() -> None:
    def verdict(ids: list[int], beyond: int = 0) -> str | None:
        reply = streamed(event(ids, ABORT))
        return judge(ASK, reply, aborted=True, allowed=Allowed(beyond=beyond))

    assert verdict([]) is None
    assert verdict([0, 1]) is None
    assert verdict([0, 2])
    # Behind its limit of four tokens only where a step has several, and no more than that.
    assert verdict([0, 1, 2, 3, 4])
    assert verdict([0, 1, 2, 3, 4], beyond=1) is None
    assert verdict([0, 1, 2, 3, 4, 5], beyond=1)
    assert verdict([0, 1, 2, 3, 5], beyond=1)


def test_deltas_of_the_openai_routes_are_put_together() -> None:
    def chunk(text: str, reason: str | None = None) -> str:
        return json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": reason}]})

    ask = replace(ASK, path=COMPLETIONS)
    parts = [chunk(word) for word in WORDS[:4]]
    end = chunk("", "length")
    assert judge(ask, streamed(*parts, end), aborted=False) is None
    assert judge(ask, streamed(*parts[:2], *parts[1:], end), aborted=False)
    assert judge(ask, streamed(*parts[:2], parts[3], end), aborted=False)


def test_log_probabilities_belong_to_their_tokens() -> None:
    ask = replace(ASK, logprobs=True, stream=False)
    body = json.loads(GOOD[-1])
    for values, right in (([-1.0] * 4, True), ([-1.0, -1.0, -1.1, -1.0], False), ([], False)):
        body["meta_info"]["output_token_logprobs"] = [
            [value, token, None] for token, value in enumerate(values)
        ]
        reply = Reply(200)
        reply.whole(json.dumps(body))
        assert (judge(ask, reply, aborted=False) is None) == right


def test_a_refusal_has_to_be_the_expected_one() -> None:
    ask = Ask(GENERATE, b"", refusal="tokenflow_rate is")
    refused = Reply(400, error="tokenflow_rate is -1; allowed is ...")
    assert judge(ask, refused, aborted=False) is None
    assert judge(ask, Reply(400, error="something else"), aborted=False)
    assert judge(ask, streamed(*GOOD), aborted=False)
    full = Reply(503, error="The request queue is full.")
    assert judge(ASK, full, aborted=False, allowed=Allowed((FULL,))) is None
    assert judge(ASK, full, aborted=False)


def test_the_seed_says_what_is_asked() -> None:
    def asked(seed: int) -> list[Ask]:
        rng = random.Random(seed)
        return [draw(rng, [SUBJECT], f"{n}", frozenset()) for n in range(200)]

    assert asked(1) == asked(1)
    assert asked(1) != asked(2)
    kinds = {ask.refusal for ask in asked(1)}
    assert len(kinds) > 5, "bad input of several kinds"


def test_a_stream_served_during_a_sweep_may_have_been_aborted() -> None:
    journal = Journal()
    assert not journal.swept(0.0)
    with journal.sweep():
        assert journal.swept(0.0), "it is not over yet"
    assert journal.swept(0.0)
    assert not journal.swept(float("inf"))


def test_a_sweep_that_takes_effect_late_may_abort_what_came_after_it() -> None:
    journal, exact = Journal(late=60.0), Journal()
    for each in (journal, exact):
        with each.sweep():
            pass
    now = time.monotonic()
    assert journal.swept(now) and not exact.swept(now)
    assert not journal.swept(now + 120.0)
