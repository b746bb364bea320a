"""Two servers behind smg, of which one is ended, killed, or stands still, while streams pause.

The bar: no answer is lost, short, or another one, unless its client is told that it broke off.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from gateways.shepherd import shepherd
from servers.client import ANSWER_SECONDS, IDLE_SECONDS, Served
from servers.fixtures import COLD

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1200)]

PAUSING = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
LONG = 400
"""Tokens of an answer: it is under way when its server gets into trouble."""
WATCHED = ("--health-check-interval-secs", "1", "--health-failure-threshold", "2")
GATEWAY = ("--policy", "round_robin", *WATCHED)
PATIENT = 120.0


@dataclass
class Heard:
    """What a client has heard of one answer.

    Attributes:
        tokens: Its tokens so far.
        begun: Set at the first.
        reason: Why the server says that it has ended; None: it has not said so.
        broken: What the client is told of an answer that broke off.
    """

    tokens: list[int] = field(default_factory=list)
    begun: threading.Event = field(default_factory=threading.Event)
    reason: str | None = None
    broken: str | None = None


def listen(url: str, prompt: list[int], heard: Heard) -> None:
    """Ask for a stream, and write down what comes."""
    sampling = {"temperature": 0, "max_new_tokens": LONG, "ignore_eos": True}
    body = {"input_ids": prompt, "stream": True, "sampling_params": sampling}
    request = urllib.request.Request(
        f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line.removeprefix(b"data: "))
                if "error" in event:
                    heard.broken = str(event["error"])
                    return
                heard.tokens = event["output_ids"]
                heard.begun.set()
                reason = event["meta_info"]["finish_reason"]
                heard.reason = reason and reason["type"]
    except (OSError, HTTPException) as error:
        heard.broken = repr(error)
    finally:
        heard.begun.set()


@contextlib.contextmanager
def asked(url: str, prompts: list[list[int]]) -> Iterator[list[Heard]]:
    """Answers to all, each begun; the block ends when all of them have ended."""
    answers = [Heard() for _ in prompts]
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        going = [pool.submit(listen, url, *each) for each in zip(prompts, answers, strict=True)]
        for heard in answers:
            assert heard.begun.wait(IDLE_SECONDS)
        yield answers
        for each in going:
            each.result(ANSWER_SECONDS)


@pytest.fixture(scope="module")
def whole(start, prompts) -> list[list[int]]:
    """The answers of stock SGLang."""
    with start() as stock:
        found: list[list[int]] = stock.outputs(prompts, max_new_tokens=LONG, ignore_eos=True)
        return found


@pytest.fixture
def fleet(start, tmp_path: Path) -> Iterator[tuple[str, Served, Served]]:
    """The gateway's address and its two servers; the first starts as users start SGLang."""
    with (
        start(*PAUSING, launcher=COLD) as one,
        start(*PAUSING) as two,
        shepherd(tmp_path, [one.server.url, two.server.url], *GATEWAY) as smg,
    ):
        yield smg.url, one, two


def wait(holds: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + PATIENT
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def healthy(url: str) -> int:
    """Servers to which the gateway sends requests."""
    with urllib.request.urlopen(f"{url}/workers", timeout=IDLE_SECONDS) as answer:
        return sum(each["is_healthy"] for each in json.load(answer)["workers"])


def complete(answers: list[Heard], whole: list[list[int]]) -> list[bool]:
    """Which answers are whole; all others broke off, and their clients were told."""
    for heard, tokens in zip(answers, whole, strict=True):
        assert heard.tokens == tokens[: len(heard.tokens)]
        assert (heard.reason == "length") == (len(heard.tokens) == LONG)
        assert heard.reason or heard.broken, "cut off, and the client is told nothing"
    return [heard.reason == "length" for heard in answers]


def test_a_server_that_is_ended_answers_what_it_has(fleet, prompts, whole) -> None:
    url, one, two = fleet
    with asked(url, prompts) as first:
        assert not any(each.reason for each in first), "the test must disturb"
        os.kill(one.server.pid, signal.SIGTERM)
        later = []
        while one.server.is_alive():  # newcomers meanwhile, one after the other
            number = len(later) % len(prompts)
            with asked(url, [prompts[number]]) as (heard,):
                pass
            later.append((number, heard))
    assert all(complete(first, whole))
    numbers, answers = zip(*later, strict=True)
    assert all(complete(list(answers), [whole[number] for number in numbers]))
    wait(lambda: healthy(url) == 1, "the gateway still sends to the server that has ended")
    with asked(url, prompts) as last:
        pass
    assert all(complete(last, whole))
    two.assert_clean()


def test_a_killed_server_breaks_off_what_it_has_and_says_so(fleet, prompts, whole) -> None:
    """The control of the one above: here answers break off."""
    url, one, two = fleet
    with asked(url, prompts) as first:
        os.killpg(one.server.pid, signal.SIGKILL)
        with asked(url, prompts) as later:  # before the gateway knows: it tries the other one
            pass
    assert 0 < sum(complete(first, whole)) < len(prompts)
    assert all(complete(later, whole))
    two.assert_clean()


def test_a_server_that_stands_still_for_a_while_loses_nothing(fleet, prompts, whole) -> None:
    url, one, _ = fleet
    with asked(url, prompts) as first:
        assert not any(each.reason for each in first), "the test must disturb"
        one.server.pause()
        try:
            wait(lambda: healthy(url) == 1, "the gateway still sends to the server")
            with asked(url, prompts) as later:
                pass
        finally:
            one.server.resume()
        wait(lambda: healthy(url) == 2, "the gateway never sends to the server again")
    assert all(complete([*first, *later], [*whole, *whole]))
