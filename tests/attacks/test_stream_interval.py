"""With a stream interval the reader has what was sent, and a pause sends what was made."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.engine

HELD = 7
"""Tokens per second of streams that `forced:HoldMarked` pauses for good after ten tokens."""
CHURNED = 8
"""Tokens per second of streams that it preempts and resumes all the time."""
FAR = 20_000
"""Tokens that no test waits for: a slow client still finds the stream running."""
numbers = itertools.count()


@pytest.fixture(
    scope="module", params=["cumulative", pytest.param("incremental", marks=pytest.mark.slow)]
)
def served(start, request):
    flags = ["--scheduler", "tokenflow", "--tokenflow-policy", "forced:HoldMarked"]
    flags += ["--stream-interval", "40", "--max-total-tokens", "50000"]
    if request.param == "incremental":
        flags.append("--incremental-streaming-output")
    with start(*flags) as running:
        running.incremental = request.param == "incremental"
        yield running


class Stream:
    """One stream, read event by event."""

    def __init__(self, served, ids: list[int], rate: float, **sampling: Any) -> None:
        self.served = served
        self.rid = f"stream-{next(numbers)}-"
        self.parts: list[dict[str, Any]] = []
        params = {"temperature": 0, "custom_params": {"tokenflow_rate": rate}, **sampling}
        body = {"input_ids": ids, "stream": True, "sampling_params": params, "rid": self.rid}
        # A reader who gets nothing for so long runs into the time-out.
        self.connection = http.client.HTTPConnection("127.0.0.1", served.server.port, timeout=60)
        self.connection.request(
            "POST", "/generate", json.dumps(body), {"content-type": "application/json"}
        )
        self.response = self.connection.getresponse()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while line := self.response.readline():
            data = line.decode().removeprefix("data: ").strip()
            if data and data != "[DONE]":
                self.parts.append(json.loads(data))
                yield self.parts[-1]

    def whole(self) -> Stream:
        """Read to the end."""
        with contextlib.closing(self.connection):
            for _ in self:
                pass
        return self

    def abort(self) -> Stream:
        self.served.post("/abort_request", {"rid": self.rid})
        return self.whole()

    @property
    def ids(self) -> list[int]:
        if self.served.incremental:
            return [token for part in self.parts for token in part["output_ids"]]
        return self.parts[-1]["output_ids"] if self.parts else []

    @property
    def text(self) -> str:
        texts = [part["text"] for part in self.parts]
        return "".join(texts) if self.served.incremental else texts[-1]


def test_a_pause_sends_what_the_interval_holds_back(served, prompts, reference) -> None:
    # Runs all the while: a policy that serves no stream would be overruled.
    busy = Stream(served, prompts[3], 20, max_new_tokens=FAR)
    held = Stream(served, prompts[0], HELD, max_new_tokens=64)
    with contextlib.closing(held.connection), contextlib.closing(busy.connection):
        for _ in held:
            if len(held.ids) >= 10:
                break
        assert 10 <= len(held.ids) < 40, "before the interval was full"
        assert held.ids == reference[0][: len(held.ids)]
        sent = held.ids
        held.abort()
        assert held.parts[-1]["meta_info"]["finish_reason"]["type"] == "abort"
        assert held.ids == sent, "nothing is sent twice"
        busy.abort()


def test_tokens_are_those_of_the_undisturbed_run(served, prompts, reference) -> None:
    before = served.total("tokenflow:preemptions_total")
    got = served.together(
        [lambda p=p: Stream(served, p, CHURNED, max_new_tokens=64).whole().ids for p in prompts]
    )
    assert got == reference
    assert served.total("tokenflow:preemptions_total") - before >= 4 * len(prompts)


def test_without_a_pause_the_interval_is_kept(served, prompts, reference) -> None:
    calm = Stream(served, prompts[1], 20, max_new_tokens=64).whole()
    assert calm.ids == reference[1]
    assert len(calm.parts) <= 3, "the first, the forty that follow, the end"


def test_a_pause_does_not_send_the_beginning_of_a_stop_string(served, prompts) -> None:
    calm = Stream(served, prompts[2], 20, max_new_tokens=64).whole()
    middle = len(calm.text) // 2
    how = {"max_new_tokens": 64, "stop": [calm.text[middle : middle + 12]]}
    wanted = Stream(served, prompts[2], 20, **how).whole()
    got = Stream(served, prompts[2], CHURNED, **how).whole()
    assert (got.text, got.ids) == (wanted.text, wanted.ids)


def test_the_table_claims_no_more_than_the_reader_has(served, prompts) -> None:
    """Of hundreds of tokens one was sent: a fifth of a second at 5 tokens/s."""
    how = {"max_new_tokens": FAR, "stream_interval": 100_000}
    slow = Stream(served, prompts[3], 0, custom_params={"tokenflow_class": "listening"}, **how)
    next(iter(slow))
    label = ("qos_class", "listening")

    def seen(name: str, *more: tuple[str, str]) -> float:
        return served.metrics().get((f"tokenflow:{name}", tuple(sorted((label, *more)))), 0.0)

    end = time.monotonic() + 60.0
    while seen("buffer_seconds_count") < 3:
        assert time.monotonic() < end
        time.sleep(0.2)
    assert seen("buffer_seconds_sum") <= 3 * 0.2
    assert seen("output_tokens_total") == 1.0
    slow.abort()
    served.assert_clean()
