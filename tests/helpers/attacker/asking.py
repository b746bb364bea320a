"""What one client asks, drawn at random: a prompt, a route, options, and how it will behave."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attacker.truth import LONGEST, Subject

GENERATE, COMPLETIONS, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"
NONSENSE = 0.08
"""Share of requests that have to be refused."""
HUNG_UP, ABORTED = 0.12, 0.12
"""Shares of clients that hang up or abort."""
SECONDS = 1.2
"""The longest that a client waits before it does so."""
RESTED = 0.2
"""Share of streams with an id whose client looks away again and again, as long as they last."""
RENEWED = (0.01, 0.3)
"""Seconds from one rest to the next."""
RATES: tuple[dict[str, Any], ...] = (
    {},
    {"tokenflow_class": "agent"},
    {"tokenflow_class": "listening"},
    *({"tokenflow_rate": rate} for rate in (2, 5.5, 20, 60)),
    *({"tokenflow_deadline": seconds} for seconds in (0.5, 10, 60)),
)
WAITS = (0, 0.02, 1, 30)
"""Seconds that a request may wait where the server refuses by that; 0: as long as it takes."""
TENANT = "x-tenant"
"""The header that says who asks, where the server tells tenants apart."""
TENANTS = (*(4 * (None, "named", "crowd")), *(f"stranger {number}" for number in range(70)))
"""More than a server tells apart, some of them often."""


@dataclass(frozen=True)
class Ask:
    """A request and what may come of it.

    Attributes:
        path: The route.
        payload: The body, as it is sent.
        subject: Whose answer is expected; None for a request that has to be refused.
        tokens: So many of it, the one that completes the stop string among them.
        shown: So many of these are in the text.
        samples: So many times.
        stream: Whether as events.
        logprobs: Whether with log probabilities.
        rid: The request's id; "": SGLang makes one.
        refusal: Words that a refusal has to contain.
        hang_up: Seconds, after which the client is gone; None: it stays.
        abort: Seconds, after which it asks for the end; None: it does not.
        rest: Seconds, after which it looks away, and between two rests; None: it does not.
        tenant: Who asks, by a header; None: it has none.
    """

    path: str
    payload: bytes
    subject: Subject | None = None
    tokens: int = 0
    shown: int = 0
    samples: int = 1
    stream: bool = False
    logprobs: bool = False
    rid: str = ""
    refusal: str = ""
    hang_up: float | None = None
    abort: float | None = None
    rest: tuple[float, float] | None = None
    tenant: str | None = None

    def __str__(self) -> str:
        said = [self.path, "stream" if self.stream else "whole", self.rid]
        if self.subject is None:
            return " ".join([*said, f"to be refused: {self.payload[:80]!r}"])
        said.append(f"{self.tokens} tokens of {self.subject.name}")
        for name in ("samples", "logprobs", "hang_up", "abort", "rest", "tenant"):
            if (value := getattr(self, name)) not in (None, False, 1):
                said.append(f"{name}={value}")
        return " ".join(said)


def draw(
    rng: random.Random,
    subjects: Sequence[Subject],
    name: str,
    without: frozenset[str],
    *,
    door: bool = False,
) -> Ask:
    """The next request of the client `name`; door: a tenant's, and with a wait."""
    if rng.random() < NONSENSE:
        kinds = [kind for kind in _NONSENSE if kind not in without]
        return _NONSENSE[rng.choice(kinds)](rng, rng.choice(subjects))
    subject = rng.choice(subjects)
    tokens = rng.randint(1, rng.choice((8, 64, LONGEST)))
    stream = rng.random() < 0.6
    options: dict[str, Any] = {}
    samples = 1
    if rng.random() < 0.1 and "samples" not in without:
        options["n"] = samples = rng.randint(2, 3)
    limit = tokens
    shown = tokens
    if rng.random() < 0.2 and "stop" not in without:
        stop = subject.words[rng.randrange(tokens)]
        shown = subject.words.index(stop)
        tokens = shown + 1
        options["stop"] = stop
    rates = rng.choice(RATES)
    tenant = rng.choice(TENANTS) if door else None
    if door and rng.random() < 0.3:
        rates = {**rates, "tokenflow_max_wait": rng.choice(WAITS)}
    if rates:
        options["custom_params"] = rates
    behaviour = rng.random()
    hang_up = abort = None
    if behaviour < HUNG_UP and "hang-up" not in without:
        hang_up = rng.random() * SECONDS
    elif behaviour < HUNG_UP + ABORTED and samples == 1 and "abort" not in without:
        abort = rng.random() * SECONDS
    logprobs = False
    more: dict[str, Any] = {"stream": stream}
    if rid := name if samples == 1 else "":
        more["rid"] = rid
    if rng.random() < 0.1:
        more["no_such_field"] = 1  # SGLang does not mind
    if isinstance(subject.prompt, str):
        path = CHAT
        more["messages"] = [{"role": "user", "content": subject.prompt}]
    elif rng.random() < 0.25:
        path, more["prompt"] = COMPLETIONS, subject.prompt
    else:
        path, more["input_ids"] = GENERATE, subject.prompt
        logprobs = rng.random() < 0.15 and "logprobs" not in without
        more["return_logprob"] = logprobs
    if path == GENERATE:
        more["sampling_params"] = {"temperature": 0, "max_new_tokens": limit, **options}
    else:
        more |= {"model": "tiny", "temperature": 0, "max_tokens": limit, **options}
    payload = json.dumps(more).encode()
    rest = None
    if rid and stream and rng.random() < RESTED and "rests" not in without:
        rest = rng.random() * SECONDS, rng.uniform(*RENEWED)
    ends = hang_up, abort, rest, tenant
    return Ask(path, payload, subject, tokens, shown, samples, stream, logprobs, rid, "", *ends)


def _generate(rng: random.Random, subject: Subject, refusal: str, **changed: Any) -> Ask:
    """A refusable request to /generate: `changed` goes into the body or its sampling parameters."""
    ids = changed.pop("input_ids", [20, 21, 22])
    params = {"temperature": 0, "max_new_tokens": 8, **changed}
    stream = rng.random() < 0.5
    body = {"input_ids": ids, "stream": stream, "sampling_params": params}
    return Ask(GENERATE, json.dumps(body).encode(), stream=stream, refusal=refusal)


def _broken_json(rng: random.Random, subject: Subject) -> Ask:
    whole = json.dumps({"input_ids": [20, 21, 22], "stream": True}).encode()
    path = rng.choice((GENERATE, COMPLETIONS, CHAT))
    return Ask(path, whole[: rng.randrange(1, len(whole) - 1)], refusal="JSON decode error")


def _bad_rate(rng: random.Random, subject: Subject) -> Ask:
    rate = rng.choice(("20", -1, 0, 1e9, True, {"rate": 5}, [5], None))
    return _generate(rng, subject, "tokenflow_rate is", custom_params={"tokenflow_rate": rate})


def _unknown_class(rng: random.Random, subject: Subject) -> Ask:
    params = {"tokenflow_class": "skimming"}
    return _generate(rng, subject, "known classes are", custom_params=params)


def _unknown_key(rng: random.Random, subject: Subject) -> Ask:
    return _generate(rng, subject, "tokenflow_rate", custom_params={"tokenflow_rte": 20})


def _too_long(rng: random.Random, subject: Subject) -> Ask:
    return _generate(rng, subject, "exceeds the maximum allowed length", input_ids=[50] * 6000)


def _unknown_parameter(rng: random.Random, subject: Subject) -> Ask:
    return _generate(rng, subject, "unknown field", no_such_parameter=1)


def _bad_temperature(rng: random.Random, subject: Subject) -> Ask:
    return _generate(rng, subject, "temperature must be", temperature=-rng.random() - 0.1)


_NONSENSE: dict[str, Callable[[random.Random, Subject], Ask]] = {
    "broken-json": _broken_json,
    "bad-rate": _bad_rate,
    "unknown-class": _unknown_class,
    "unknown-key": _unknown_key,
    "too-long": _too_long,
    "unknown-parameter": _unknown_parameter,
    "bad-temperature": _bad_temperature,
}
