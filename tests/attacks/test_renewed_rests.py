"""Streams that rest, and begin to rest again and again: nothing else has to wait for that.

A client that may tell rates renews its rest more often than any limit. New weights, an adapter that
is unloaded, a flush and a graceful end of the server wait for streams; newcomers wait for the
weights.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
from attacker.attacked_models import make_attacked
from attacker.clients import post
from servers.tuned import tuned
from told_streams import Reading, told

pytestmark = pytest.mark.engine

LONG, SHORT = 600, 3
"""Seconds for which streams may rest."""
TOKENS = 900
"""Of each answer, of which the server makes some hundred per second."""
SOON = 120.0
"""Seconds, for a busy machine: far less than `LONG`, and than what a parked answer would take."""
ROOM = ("--scheduler", "tokenflow", "--max-total-tokens", "20000")


def resting(seconds: float) -> tuple[str, ...]:
    return tuned(longest_rest=seconds)


class Renewing(threading.Thread):
    """Looks away from its streams again and again, until they have ended or `stop`.

    Attributes:
        refused: What the server said where it took no rest.
    """

    def __init__(self, served: Any, streams: Sequence[Reading], every: float = 0.3) -> None:
        super().__init__(daemon=True)
        self._served, self._streams, self._every = served, streams, every
        self._stopped = threading.Event()
        self.refused: list[str] = []
        self.start()

    def run(self) -> None:
        while not self._stopped.is_set() and any(each.is_alive() for each in self._streams):
            for each in self._streams:
                try:
                    told(self._served, each.rid, {"rate": 0.1})
                    status, said = told(self._served, each.rid, {"rate": 0})
                except OSError:
                    return  # the server has ended
                if status == 409:
                    self.refused.append(said)
            self._stopped.wait(self._every)

    def stop(self) -> None:
        self._stopped.set()
        self.join(60)


def rest(served: Any, *streams: Reading) -> None:
    """All of them stand still from now on."""
    for stream in streams:
        stream.wait_for(4)
        assert told(served, stream.rid, {"rate": 0})[0] == 204
    for stream in streams:
        stream.stands()


@contextmanager
def renewed(served: Any, *streams: Reading) -> Iterator[Renewing]:
    """All of them rest, and are told to again and again."""
    rest(served, *streams)
    renewing = Renewing(served, streams)
    try:
        yield renewing
    finally:
        renewing.stop()


def read_to_its_end(stream: Reading, answer: list[int]) -> None:
    """It ends soon, as long as it was asked to be, with the tokens that it always has."""
    stream.join(SOON)
    assert not stream.is_alive(), f"{len(stream.ids)} of {TOKENS} tokens"
    assert stream.reason == {"type": "length", "length": TOKENS}
    assert stream.ids[: len(answer)] == answer


@pytest.fixture(scope="module")
def served(start, models):
    with start(*ROOM, *resting(LONG), "--lora-paths", f"tiny={models / 'lora'}") as running:
        yield running


@pytest.fixture(scope="module")
def again(tmp_path_factory) -> str:
    """The folder of the served model's weights once more."""
    return str(make_attacked(tmp_path_factory.mktemp("again"), "qwen3"))


def test_new_weights_wait_for_no_rest(served, again, prompts, reference) -> None:
    streams = [Reading(served, prompt, TOKENS) for prompt in prompts[:2]]
    with renewed(served, *streams):
        updating = threading.Thread(target=update, args=(served, again), daemon=True)
        updating.start()
        newcomer = Reading(served, prompts[2], TOKENS)
        for stream, answer in zip((*streams, newcomer), reference[:3], strict=True):
            read_to_its_end(stream, answer)
        updating.join(SOON)
        assert not updating.is_alive()
    # A stream that comes after it may rest.
    later = Reading(served, prompts[3], TOKENS * 10)
    rest(served, later)
    told(served, later.rid, {"rate": 1000})
    later.ends_after(reference[3])
    served.assert_clean()


def update(served: Any, weights: str) -> None:
    started = time.monotonic()
    # Of what has ended the last step may be in flight, for which SGLang's flush does not wait.
    body = {"model_path": weights, "flush_cache": False}
    answer = served.post("/update_weights_from_disk", body)
    assert answer.status == 200, answer
    print(f"update: {time.monotonic() - started:.1f} s")


def test_an_adapter_that_is_unloaded_waits_for_no_rest_of_its_own(served, prompts, models) -> None:
    """Streams that do not use it rest on."""
    other = Reading(served, prompts[4], TOKENS)
    rest(served, other)
    # Not before: it ends by itself, while a busy machine waits for the other one to stand.
    using = Reading(served, prompts[5], TOKENS, lora_path="tiny")
    with renewed(served, using):
        started = time.monotonic()
        answer = served.post("/unload_lora_adapter", {"lora_name": "tiny"})
        print(f"unload: {time.monotonic() - started:.1f} s")
        assert answer.body["success"], answer
        read_to_its_end(using, [])
        other.stands()
    assert told(served, other.rid, {"rate": 1000})[0] == 204
    other.join(SOON)
    assert other.reason["type"] == "length"
    body = {"lora_name": "tiny", "lora_path": str(models / "lora")}
    assert served.post("/load_lora_adapter", body).body["success"]
    served.assert_clean()


def test_a_flush_that_waits_ends_rests(served, prompts, reference) -> None:
    stream = Reading(served, prompts[6], TOKENS)
    with renewed(served, stream):
        assert served.post("/flush_cache", None).status == 400, "one that does not wait is refused"
        started = time.monotonic()
        status, text = post(served.server.port, f"/flush_cache?timeout={SOON}", None)
        print(f"flush: {time.monotonic() - started:.1f} s")
        assert status == 200, text
        read_to_its_end(stream, reference[6])
    later = Reading(served, prompts[7], TOKENS)
    rest(served, later)
    told(served, later.rid, "", "DELETE")


def test_a_flush_that_gave_up_lets_streams_rest_again(served, prompts) -> None:
    stream = Reading(served, prompts[8], TOKENS * 20)
    rest(served, stream)
    before = len(stream.ids)
    status, text = post(served.server.port, "/flush_cache?timeout=5", None)
    assert (status, "Timed out" in text) == (400, True), text
    assert stream.stands() > before, "it went on meanwhile"
    assert told(served, stream.rid, "", "DELETE")[0] == 204
    stream.join(60)


def test_a_stream_rests_for_so_long_in_all(start, prompts, reference) -> None:
    """However often it begins to: the server goes on with it, and says so."""
    with start(*ROOM, *resting(SHORT)) as served:
        stream = Reading(served, prompts[0], TOKENS)
        with renewed(served, stream) as renewing:
            read_to_its_end(stream, reference[0])
        assert f"for {SHORT} s in all" in renewing.refused[0]
        served.assert_clean()


@pytest.mark.parametrize("rate", [0, pytest.param(0.1, marks=pytest.mark.slow)])
def test_a_server_that_ends_waits_for_no_rest(start, prompts, reference, rate) -> None:
    """Nor for a reader who reads a token in ten seconds, though streams are paced."""
    with start(*ROOM, *resting(LONG), *tuned(pace=True)) as served:
        streams = [Reading(served, prompt, TOKENS, rate=rate or 10.0) for prompt in prompts[:2]]
        if rate:
            for stream in streams:
                stream.stands()
            end(served, streams, reference)
        else:
            with renewed(served, *streams):
                end(served, streams, reference)


def end(served: Any, streams: Sequence[Reading], answers: Sequence[list[int]]) -> None:
    """SIGTERM: all are served to their ends before."""
    started = time.monotonic()
    listening = [each for each in psutil.net_connections("tcp") if each.status == "LISTEN"]
    port = served.server.port
    os.kill(next(each.pid for each in listening if each.laddr.port == port), signal.SIGTERM)
    for stream, answer in zip(streams, answers, strict=False):
        read_to_its_end(stream, answer)
    while served.server.is_alive():
        assert time.monotonic() < started + SOON
        time.sleep(0.1)
    print(f"end: {time.monotonic() - started:.1f} s")
