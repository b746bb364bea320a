"""Tokens whose text the front end keeps are in no reader's buffer, however many there are."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers.fixtures import respelled

pytestmark = pytest.mark.engine

TOOL_CALL = 310
"""Token that is spelled as what the parser takes for the beginning of a tool call."""
LEAD_BYTE = 161
"""Token of the byte with which a character of three bytes begins."""
WORD = 300
ALWAYS = 100.0
"""Bias with which a token is all that the model says."""
RATE = 2.0
"""Tokens per second: the thousands that are made would last for an hour."""
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def caller(models: Path, tmp_path_factory) -> Path:
    """The tiny model, with a word that begins a tool call."""
    folder = tmp_path_factory.mktemp("caller")
    return respelled(models / "qwen3", folder, {"<tool_call>": TOOL_CALL})


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((), id="1"),
        pytest.param(("--stream-interval", "40"), id="40", marks=pytest.mark.slow),
    ],
)
def served(start, caller, request):
    flags = ("--scheduler", "tokenflow", "--max-total-tokens", "30000")
    with start(*flags, "--tool-call-parser", "hermes", *request.param, model=caller) as running:
        yield running


@contextlib.contextmanager
def streaming(served, path: str, body: dict[str, Any]) -> Iterator[http.client.HTTPResponse]:
    """A stream that is read until the test is over; then its client is gone."""
    connection = http.client.HTTPConnection("127.0.0.1", served.server.port, timeout=60)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    try:
        response = connection.getresponse()
        assert response.status == 200, response.read()
        yield response
    finally:
        connection.close()
        served.assert_clean()


def chat(token: int, **more: Any) -> tuple[str, dict[str, Any]]:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 20_000,
        "logit_bias": {str(token): ALWAYS},
        "custom_params": {"tokenflow_rate": RATE},
        "stream": True,
        "ignore_eos": True,
        **more,
    }
    return "/v1/chat/completions", body


def plain(token: int) -> tuple[str, dict[str, Any]]:
    sampling = {
        "max_new_tokens": 20_000,
        "logit_bias": {str(token): ALWAYS},
        "custom_params": {"tokenflow_rate": RATE},
        "ignore_eos": True,
    }
    return "/generate", {"input_ids": [40, 41, 42], "sampling_params": sampling, "stream": True}


def tokens_made(served) -> int:
    """By all that is served now, prompts included."""
    with urllib.request.urlopen(served.server.url + "/v1/loads", timeout=60) as response:
        return sum(loads["num_total_tokens"] for loads in json.load(response)["loads"])


def waiting(served) -> float:
    """Tokens in the deposits."""
    return served.total("tokenflow:deposit_tokens")


def unread(served) -> float:
    """Seconds of text that the scheduler takes the reader to have, after two looks at it."""
    count = served.total("tokenflow:buffer_seconds_count")
    seconds = served.total("tokenflow:buffer_seconds_sum")
    served.wait_for("buffer_seconds_count", count + 2)
    looks = served.total("tokenflow:buffer_seconds_count") - count
    return (served.total("tokenflow:buffer_seconds_sum") - seconds) / looks


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(*chat(TOOL_CALL, tools=TOOLS), id="tool call"),
        pytest.param(*chat(LEAD_BYTE), id="bytes of a chat", marks=pytest.mark.slow),
        pytest.param(*plain(LEAD_BYTE), id="bytes", marks=pytest.mark.slow),
    ],
)
def test_the_reader_has_not_begun(served, path, body) -> None:
    """Each second the buffers of all who read are looked at: of this one there is none."""
    before = served.total("tokenflow:ttfvt_seconds_count")
    with streaming(served, path, body):
        served.wait_until("running_streams", 1.0)
        end, looks = time.monotonic() + 60, -1.0
        while looks != (looks := served.total("tokenflow:buffer_seconds_count")):
            assert time.monotonic() < end, "its reader is believed to read"
            time.sleep(4)
        assert served.total("tokenflow:running_streams") == 1.0
        assert served.total("tokenflow:ttfvt_seconds_count") == before, "it has seen no text"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(*chat(WORD, tools=TOOLS), id="tools"),
        pytest.param(*chat(WORD), id="chat", marks=pytest.mark.slow),
        pytest.param(*plain(WORD), id="generate", marks=pytest.mark.slow),
    ],
)
def test_words_are_read(served, path, body) -> None:
    """The control: as many tokens, of which nothing is held back."""
    before = served.total("tokenflow:ttfvt_seconds_count")
    with streaming(served, path, body):
        end = time.monotonic() + 60.0
        while unread(served) <= 10.0:  # on a busy machine its first looks see no text yet
            assert time.monotonic() < end, "its reader is believed to have read all"
        served.wait_for("ttfvt_seconds_count", before + 1)
        served.wait_until("stalled_streams", 0.0)


SLOW = {"tokenflow_deposit": True, "tokenflow_tbt_slo": 600}
"""Of a stream of which a token is delivered every ten minutes."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "body"),
    [chat(TOOL_CALL, tools=TOOLS, custom_params=SLOW), chat(LEAD_BYTE, custom_params=SLOW)],
    ids=["tool call", "bytes"],
)
def test_tokens_without_text_do_not_wait_in_a_deposit(served, path, body) -> None:
    """They go on to the parser, which may have text for the client by the next one."""
    with streaming(served, path, body):
        served.wait_until("running_streams", 1.0)
        end = time.monotonic() + 120.0
        while (made := tokens_made(served)) < 400 or waiting(served) > made / 3:
            # A front end that stood still passes on in one moment what has come meanwhile.
            assert time.monotonic() < end, f"{waiting(served):g} of {made} tokens wait"
            time.sleep(0.1)
    served.wait_until("deposit_tokens", 0.0)


@pytest.mark.slow
def test_words_wait_in_a_deposit(served) -> None:
    """The control."""
    path, body = chat(WORD, custom_params=SLOW)
    with streaming(served, path, body):
        served.wait_for("deposit_tokens", 200.0, within=120.0)
    served.wait_until("deposit_tokens", 0.0)
