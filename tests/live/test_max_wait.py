"""Requests whose first token would come too late are refused at once, and no other is touched."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from functools import partial
from typing import Any

import pytest
from servers.client import Answer, Served

pytestmark = pytest.mark.engine

POOL = ("--scheduler", "tokenflow", "--max-total-tokens", "1500", "--hicache-ratio", "2")
"""A few of the streams below fit; with the host's memory some more."""
CROWD = 40
FAST = 200.0
"""Tokens per second of each reader: the engine can serve a few of them."""
LONG = {"temperature": 0, "ignore_eos": True, "max_new_tokens": 400}
OWN_PREFILL = 5.0
"""Seconds that a usual prompt takes by itself, at the very most."""
PATIENT = {"tokenflow_max_wait": 0}
REFUSED = "tokenflow:refused_requests_total"
SHIPPED = ("default", "reading", "listening", "agent")
"""Classes of a server without a file of them."""


def crowd(served: Served, prompts: list[list[int]], custom: dict[str, Any]) -> list[Answer]:
    """Many readers at once."""
    terms = {"custom_params": {"tokenflow_rate": FAST, **custom}}
    return served.together(
        [
            partial(served.generate, prompts[number % len(prompts)], **LONG, **terms)
            for number in range(CROWD)
        ]
    )


def asked(served: Served, path: str, body: dict[str, Any]) -> tuple[int, str | None, str]:
    """The status of an answer, when to come again, and what was said."""
    request = urllib.request.Request(
        served.server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=240) as answer:
            return answer.status, answer.headers["Retry-After"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Retry-After"], error.read().decode()


def kinds(served: Served, custom: dict[str, Any]) -> list[tuple[int, str | None, str]]:
    """The answers to a short request of each kind, streamed and not."""
    params = {"custom_params": custom}
    bodies = {
        "/generate": {"text": "hello", "sampling_params": {"max_new_tokens": 2, **params}},
        "/v1/completions": {"model": "x", "prompt": "hello", "max_tokens": 2, **params},
        "/v1/chat/completions": {
            "model": "x",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 2,
            **params,
        },
    }
    return [
        asked(served, path, {**body, "stream": stream})
        for path, body in bodies.items()
        for stream in (False, True)
    ]


@pytest.fixture(scope="module")
def served(start: Any) -> Any:
    with start(*POOL, "--tokenflow-max-wait", "2") as served:
        yield served


def test_what_waits_too_long_is_refused_and_all_else_is_answered_alike(served, prompts) -> None:
    alone = [served.generate(prompt, **LONG).body["output_ids"] for prompt in prompts]
    counts = {labels: n for (name, labels), n in served.metrics().items() if name == REFUSED}
    # The first refusal is an increase of what was there.
    assert counts == {(("qos_class", name),): 0.0 for name in SHIPPED}
    patient = threading.Thread(target=crowd, args=(served, prompts, PATIENT))
    patient.start()
    served.wait_for("expected_wait_seconds", 2.5)
    refused = kinds(served, {"tokenflow_max_wait": 0.1})
    for status, after, said in refused:
        assert status == 429, said
        assert int(after or 0) >= 1
        assert "the first token may take" in said
    # A request says for itself how long it may wait.
    for status, _, said in kinds(served, {"tokenflow_max_wait": 600}):
        assert status == 200, said
    patient.join()
    answers = crowd(served, prompts, {})
    well = [number for number, each in enumerate(answers) if each.status == 200]
    assert 0 < len(well) < CROWD
    for number in well:
        assert answers[number].body["output_ids"] == alone[number % len(prompts)]
    assert {each.status for each in answers} == {200, 429}
    served.wait_until("refused_requests_total", len(refused) + CROWD - len(well))
    served.assert_clean()


def test_an_idle_server_refuses_none_and_is_well(served) -> None:
    served.metrics_once(lambda seen: seen["tokenflow:expected_wait_seconds", ()] < OWN_PREFILL)
    with urllib.request.urlopen(f"{served.server.url}/v1/loads", timeout=60) as answer:
        [load] = json.load(answer)["loads"]
    assert load["tokenflow_expected_wait_s"] < OWN_PREFILL
    for status, _, said in kinds(served, {"tokenflow_max_wait": OWN_PREFILL}):
        assert status == 200, said
    with urllib.request.urlopen(f"{served.server.url}/health_generate", timeout=60) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("value", [-1, 601, "2", True, None])
def test_a_bad_wait_is_refused_with_what_is_allowed(served, value) -> None:
    for status, _, said in kinds(served, {"tokenflow_max_wait": value}):
        assert status == 400 or "error" in said
        assert "tokenflow_max_wait is " in said
        assert "a number of seconds from 0 (as long as it takes) to 600" in said


def test_without_the_option_all_wait(start, prompts) -> None:
    """The control: the same crowd is not refused."""
    with start(*POOL) as served:
        assert {each.status for each in crowd(served, prompts, {})} == {200}
