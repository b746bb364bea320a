"""A server behind sglang-router, the router itself: what it lets through, and what it drops."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from gateways.shepherd import sglang_router
from servers.client import IDLE_SECONDS, Served

pytestmark = [pytest.mark.engine, pytest.mark.slow]

PAUSING = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
HOLD = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:HoldMarked")
"""Pauses a stream whose reader's rate is 7 after ten tokens, for good."""
MARK = {"custom_params": {"tokenflow_rate": 7.0}}
LENGTH = 40
MEANWHILE = 300
ENDLESS = 4000
"""Takes longer than the test waits."""
CHAT = {"messages": [{"role": "user", "content": "hello"}]}


@contextlib.contextmanager
def streamed(url: str, body: dict[str, Any]) -> Iterator[Any]:
    """A stream that is asked for, and left at the end."""
    request = urllib.request.Request(
        url,
        json.dumps({"model": "default", "stream": True, **body}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=IDLE_SECONDS) as answer:
        yield answer


def test_answers_are_those_of_the_server_alone(start, prompts, reference, tmp_path) -> None:
    with start(*PAUSING) as served, sglang_router(tmp_path, [served.server.url]) as router:
        front = Served(SimpleNamespace(url=router.url))  # type: ignore[arg-type]
        assert front.outputs(prompts, stream=True) == reference
        assert served.total("tokenflow:preemptions_total") > 10, "the test must disturb"
        served.assert_clean()


def test_rates_come_through_in_completions_alone(start, prompts, tmp_path) -> None:
    with start(*HOLD) as served, sglang_router(tmp_path, [served.server.url]) as router:
        sampling = {"max_new_tokens": LENGTH, **MARK}
        for route, body in (
            ("/generate", {"input_ids": prompts[0], "sampling_params": sampling}),
            ("/v1/chat/completions", {**CHAT, "max_tokens": LENGTH, **MARK}),
        ):
            with streamed(f"{router.url}{route}", body) as answer:
                assert answer.read(), "not held, so it ends"
        assert served.total("tokenflow:preemptions_total") == 0
        told = {"prompt": "hello", "max_tokens": LENGTH, **MARK}
        with streamed(f"{router.url}/v1/completions", told):
            served.wait_until("paused_streams", 1)
        # It gets no text, so the router does not notice that its client has left: not while the
        # server answers another request, and has counted its tokens.
        before = served.total("tokenflow:output_tokens_total")
        served.generate(prompts[0], max_new_tokens=MEANWHILE, ignore_eos=True)
        served.wait_for("output_tokens_total", before + MEANWHILE)
        assert served.total("tokenflow:paused_streams") == 1
        served.post("/abort_request", {"abort_all": True})
        served.wait_until("paused_streams", 0)
        served.assert_clean()


def test_who_leaves_has_left_the_server_with_the_next_text(start, tmp_path) -> None:
    with start(*PAUSING) as served, sglang_router(tmp_path, [served.server.url]) as router:
        endless = {"prompt": "hello", "max_tokens": ENDLESS, "ignore_eos": True}
        with streamed(f"{router.url}/v1/completions", endless) as answer:
            served.wait_for("preemptions_total", 3)
            assert answer.readline()
        served.wait_until("working_set_streams", 0)
        assert served.sglang_total("sglang:num_aborted_requests_total") == 1
        served.assert_clean()
