"""All readers leave at once: nothing is left of their streams, and the next ones are served."""

from __future__ import annotations

import contextlib
import http.client
import json
import time

import pytest

pytestmark = pytest.mark.engine

STREAMS = 120


def connect(port: int, ids: list[int]) -> http.client.HTTPConnection:
    """A stream that no client will read to its end."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    # Its reader is slow: also on a busy machine streams get so far that others take their place.
    slow = {"tokenflow_rate": 2}
    sampling = {"max_new_tokens": 400, "temperature": 0, "custom_params": slow}
    body = json.dumps({"input_ids": ids, "stream": True, "sampling_params": sampling})
    connection.request("POST", "/generate", body, {"content-type": "application/json"})
    return connection


@pytest.mark.parametrize(
    "policy", [pytest.param("working-set", marks=pytest.mark.slow), "forced:PreemptEvery"]
)
def test_nothing_is_left_of_those_that_leave(start, prompts, reference, policy) -> None:
    flags = ("--scheduler", "tokenflow", "--tokenflow-policy", policy)
    memory = ("--max-total-tokens", "2000", "--max-running-requests", "24")
    with start(*flags, *memory) as served:
        connections = [
            connect(served.server.port, prompts[n % len(prompts)]) for n in range(STREAMS)
        ]
        deadline = time.monotonic() + 120
        while served.total("tokenflow:preemptions_total") < 10:
            assert time.monotonic() < deadline, "the test must disturb"
            time.sleep(0.2)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.close()
        assert served.outputs(prompts) == reference
        served.assert_clean()
        for phase in ("running", "paused", "waiting"):
            served.wait_until(f"{phase}_streams", 0)
