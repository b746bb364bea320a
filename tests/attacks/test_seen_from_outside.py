"""What operators, routers and clients see of paused streams."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from servers.client import IDLE_SECONDS

pytestmark = pytest.mark.engine

HOLD = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:HoldMarked")
HELD = {"custom_params": {"tokenflow_rate": 7.0}, "max_new_tokens": 40}
"""Paused after ten tokens, for good."""
CHURNED = {"custom_params": {"tokenflow_rate": 8.0}}


@pytest.fixture(scope="module")
def served(start):
    with start(*HOLD) as server:
        yield server
        server.assert_clean()


@contextlib.contextmanager
def paused(served, prompts) -> Iterator[list[Any]]:
    """These prompts' streams, paused; their answers once they are aborted at the end."""
    answers: list[Any] = [None] * len(prompts)

    def ask(number: int, prompt: list[int]) -> None:
        answers[number] = served.generate(prompt, stream=True, rid=f"held-{number}", **HELD)

    asking = [threading.Thread(target=ask, args=pair) for pair in enumerate(prompts)]
    for thread in asking:
        thread.start()
    try:
        served.wait_until("paused_streams", len(prompts))
        yield answers
    finally:
        served.post("/abort_request", {"rid": "", "abort_all": True})
        for thread in asking:
            thread.join()


def wait_until(holds, within: float = IDLE_SECONDS) -> None:
    end = time.monotonic() + within
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def loads(served) -> dict[str, Any]:
    with urllib.request.urlopen(served.server.url + "/v1/loads", timeout=30) as response:
        (each,) = json.load(response)["loads"]
    return each


def test_loads_and_gauges_count_paused_streams(served, prompts) -> None:
    tokens = sum(len(prompt) + 10 for prompt in prompts[:6])
    with paused(served, prompts[:6]):
        wait_until(lambda: loads(served)["num_running_reqs"] == 6)
        seen = loads(served)
        assert seen["num_waiting_reqs"] == 0, "a gateway would take it for overloaded"
        assert seen["queues"] == {**seen["queues"], "waiting": 0, "paused": 6}
        assert tokens <= seen["num_total_tokens"] <= tokens + 6 * 2
        assert seen["num_waiting_uncached_tokens"] == 0, "their KV is kept"
        # The gauge is written with a batch: another request's.
        ended = served.sglang_total("sglang:num_requests_total")
        served.generate(prompts[7], max_new_tokens=50)
        wait_until(lambda: served.sglang_total("sglang:num_requests_total") > ended)
        assert served.sglang_total("sglang:num_queue_reqs") == 0
        assert served.total("tokenflow:paused_streams") == 6
    served.flush_when_idle()
    wait_until(lambda: loads(served)["queues"]["paused"] == loads(served)["num_running_reqs"] == 0)
    wait_until(lambda: (loads(served)["tokenflow_headroom_tokens"] or 0) > 0)
    assert served.total("tokenflow:headroom_tokens") > 0
    assert loads(served)["token_usage"] == served.total("tokenflow:promised_share") == 0


def test_a_pause_is_not_a_retraction(served, prompts, reference) -> None:
    answer = served.generate(prompts[0], stream=True, **CHURNED)
    assert answer.body["output_ids"] == reference[0]
    assert served.total("tokenflow:preemptions_total") > 10, "the test must disturb"
    assert answer.body["meta_info"]["num_retractions"] == 0


@pytest.mark.slow
def test_a_paused_stream_does_not_time_out_and_a_running_one_does(start, prompts) -> None:
    timeout = 15  # those that are paused must have run for less, and a busy machine may be slow
    with start(*HOLD, env={"SGLANG_REQ_RUNNING_TIMEOUT": str(timeout)}) as served:
        with paused(served, prompts[:3]) as answers:
            # What runs for too long is ended by SGLang, as ever, though the others are older.
            how = {"max_new_tokens": 30_000, "ignore_eos": True, "stream_interval": 5000}
            ended = served.generate(prompts[3], stream=True, **how)
            assert "Request running timeout reached" in str(ended)
            assert answers == [None] * 3, "they are still there"
        for answer in answers:
            assert answer.body["meta_info"]["finish_reason"]["message"] == "Aborted"
        served.assert_clean()
