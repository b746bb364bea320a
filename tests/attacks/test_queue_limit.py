"""A full queue: a request that is turned away is forgotten, and a stream is not."""

from __future__ import annotations

import json
import threading
import time

import pytest
from told_streams import Reading

pytestmark = pytest.mark.engine

HOLD = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:HoldMarked")
NEVER = {"custom_params": {"tokenflow_rate": 3.0}}
"""Waits for good."""
FAR = 30_000
"""Tokens of what ends when it is aborted: a slow client still finds it running."""
LONG = {"max_new_tokens": FAR, "ignore_eos": True}
MORE = 100
"""Tokens by which it is seen that a stream goes on."""
LIMIT = 2


@pytest.fixture(scope="module")
def served(start):
    with start(*HOLD, "--max-queued-requests", str(LIMIT)) as server:
        yield server
        server.assert_clean()


class Asking(threading.Thread):
    """One question; its answer is there once the thread has ended."""

    def __init__(self, served, prompt, **how) -> None:
        super().__init__()
        self._call = lambda: served.generate(prompt, stream=True, **how)
        self.answer = None
        self.start()

    def run(self) -> None:
        self.answer = self._call()


def test_streams_that_the_engine_retracts_meet_a_full_queue(served, prompts, reference) -> None:
    waiting = [Asking(served, prompt, **NEVER) for prompt in prompts[:LIMIT]]
    served.wait_until("waiting_streams", LIMIT)
    running = [Asking(served, prompt, **LONG) for prompt in prompts[3:6]]
    # The queue has room for none of them, so they come one by one when one leaves it.
    for thread in running:
        thread.join(60.0)
    turned_away = [thread for thread in running if not thread.is_alive()]
    assert len(turned_away) == len(running)
    assert all("queue is full" in str(thread.answer) for thread in turned_away)

    served.post("/abort_request", {"rid": "", "abort_all": True})
    for thread in waiting:
        thread.join()
    streams = []
    for prompt in prompts[3:6]:
        streams.append(Reading(served, prompt, FAR))
        # One by one: of three that come in one pass the queue would take two.
        served.wait_until("running_streams", len(streams))
    waiting = [Asking(served, prompt, **NEVER) for prompt in prompts[:LIMIT]]
    served.wait_until("waiting_streams", LIMIT)
    served.post("/pause_generation", {"mode": "retract"})
    served.post("/continue_generation", {})
    for stream, expected in zip(streams, reference[3:6], strict=True):
        stream.wait_for(len(stream.ids) + MORE)
        assert stream.ids[: len(expected)] == expected
    assert all(stream.is_alive() for stream in streams), "the full queue turns none of them away"
    served.post("/abort_request", {"rid": "", "abort_all": True})
    for stream in streams:
        stream.join()
        assert stream.reason["type"] == "abort"
    for thread in waiting:
        thread.join()
    for name in ("running_streams", "waiting_streams", "paused_streams", "stalled_streams"):
        served.wait_until(name, 0.0)


def test_a_request_whose_grammar_is_ready_is_the_policys_business(served) -> None:
    prompts = [[5, 6, 7, 40 + number] for number in range(LIMIT + 1)]
    how = {"regex": "[a-f]{40}", **NEVER}
    asking = [Asking(served, prompt, **how) for prompt in prompts]
    served.wait_until("waiting_streams", LIMIT)
    end = time.monotonic() + 60.0
    while sum(thread.is_alive() for thread in asking) > LIMIT:
        assert time.monotonic() < end, "the queue has taken all"
        time.sleep(0.1)
    time.sleep(1.0)
    assert served.total("tokenflow:running_streams") == 0
    served.post("/abort_request", {"rid": "", "abort_all": True})
    for thread in asking:
        thread.join()
    reasons = [json.dumps(thread.answer.body) for thread in asking]
    assert sum("queue is full" in reason for reason in reasons) == 1, reasons
    assert served.total("tokenflow:output_tokens_total") >= 0
    served.wait_until("waiting_streams", 0.0)
