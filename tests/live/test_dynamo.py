"""A server behind NVIDIA Dynamo, its frontend and its sidecar themselves."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from gateways.dynamo import dynamo
from servers.client import IDLE_SECONDS, Served

from tokenflow_sgl.lab.demo.server import free_port

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MODEL = "tiny"
NAMED = ("--served-model-name", MODEL, "--incremental-streaming-output")
SAID = ("Hello", "Tell me of the sea", "one two three four five six")
LONG_HELD = {"custom_params": {"tokenflow_rate": 7.0}, "max_new_tokens": 40}
"""Paused after ten tokens, for good."""
COUNT = 9


def chat(served: Served, said: str, **more: Any) -> tuple[str, str | None]:
    """What a client reads, and why it ended."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": said}], "stream": True}
    answer = served.post(
        "/v1/chat/completions", {**body, "max_tokens": 48, "temperature": 0, **more}
    )
    assert answer.status == 200, answer
    choices = [choice for event in answer.body for choice in event["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, next((c["finish_reason"] for c in reversed(choices) if c["finish_reason"]), None)


def test_answers_are_those_of_the_server_alone(start, tmp_path) -> None:
    with start(*NAMED) as stock:
        alone = [chat(stock, said) for said in SAID]
    port = free_port()
    pausing = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
    with start(*pausing, *NAMED, "--grpc-port", str(port)) as served:
        with dynamo(tmp_path, MODEL, port, "--router-mode", "least-loaded") as url:
            front = Served(SimpleNamespace(url=url))  # type: ignore[arg-type]
            assert front.together([partial(chat, front, said) for said in SAID]) == alone
        assert served.total("tokenflow:preemptions_total") > 10, "the test must disturb"
        served.assert_clean()


def test_rates_reach_it_and_who_leaves_has_left(start, prompts, tmp_path) -> None:
    port = free_port()
    holding = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:HoldMarked")
    with (
        start(*holding, *NAMED, "--grpc-port", str(port)) as served,
        dynamo(tmp_path, MODEL, port, "--router-mode", "least-loaded") as url,
    ):
        front = Served(SimpleNamespace(url=url))  # type: ignore[arg-type]
        told = front.post(
            "/v1/chat/completions",
            {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
            | {"custom_params": LONG_HELD["custom_params"]},
        )
        assert told.status == 400, "so the page says"
        with contextlib.ExitStack() as left:
            for prompt in prompts[:COUNT]:
                body = {"model": MODEL, "input_ids": prompt, "stream": True}
                request = urllib.request.Request(
                    f"{url}/generate",
                    json.dumps({**body, "sampling_params": LONG_HELD}).encode(),
                    {"Content-Type": "application/json"},
                )
                answer = urllib.request.urlopen(request, timeout=IDLE_SECONDS)
                left.enter_context(contextlib.closing(answer))
            held = min(COUNT, len(prompts))
            served.wait_until("paused_streams", held)
            assert chat(front, "Hello")[1] == "length", "paused streams do not fill it"
        served.wait_until("paused_streams", 0)
        served.assert_clean()
