"""Servers under random arrivals, preemptions, writes, loads, aborts and flushes.

Four servers for some seconds. TOKENFLOW_SOAK_MINUTES says how long instead:

    TOKENFLOW_SOAK_MINUTES=30 make test ARGS=tests/engine/test_soak.py

All the while copies between device and host land as late as SGLang lets them.
"""

from __future__ import annotations

import concurrent.futures
import os
import random
import threading
import time
import urllib.request
from dataclasses import dataclass

import pytest
from prometheus_client.parser import text_string_to_metric_families
from servers.fixtures import BROKEN

pytestmark = pytest.mark.engine

FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
PAGES = (1, 16)
SECONDS = 60.0 * float(os.environ.get("TOKENFLOW_SOAK_MINUTES", "0.4"))
ROUND_SECONDS = 20.0
"""After so long everybody stops, and the server has to be as empty as it was at first."""
LATE = {"TOKENFLOW_EMU_LATE_COPIES": "4"}
POOLS = {
    # Sixteen streams need about 1,500 tokens.
    "large host": ("--max-total-tokens", "448", "--hicache-ratio", "6"),
    "host smaller than the device": ("--max-total-tokens", "448", "--hicache-ratio", "0.5"),
}
TURNS = [[(pool, page) for page in PAGES] for pool in POOLS]
"""Servers (host pool, page size) that run at once, a turn after the other."""
COUNTED = (
    "preemptions_total",
    "written_ahead_tokens_total",
    "loaded_ahead_tokens_total",
    "resume_recomputed_tokens_sum",
)


ABORTED = 0.15
"""Share of the requests that are aborted after up to a second."""


class Client(threading.Thread):
    """Asks one question after the other, and compares what it gets with the reference."""

    def __init__(self, served, number, prompts, reference, until, noticed) -> None:
        super().__init__()
        self._noticed = noticed
        self._served, self._prompts, self._reference = served, prompts, reference
        self._rng = random.Random(f"{number} {until}")
        self._number, self._until = number, until
        self.wrong: list[str] = []
        self.answers = self.aborts = 0

    def run(self) -> None:
        while time.monotonic() < self._until and not self._noticed.is_set():
            time.sleep(self._rng.expovariate(5.0))
            self._ask(self._rng.randrange(len(self._prompts)))
            if self.wrong:
                self._noticed.set()

    def _ask(self, index: int) -> None:
        rng, served = self._rng, self._served
        tokens = rng.randint(1, 64)
        rid = f"{self._number}-{rng.random()}"
        aborted = rng.random() < ABORTED
        if aborted:
            delay = threading.Timer(
                rng.random(), lambda: served.post("/abort_request", {"rid": rid})
            )
            delay.start()
        answer = served.generate(
            self._prompts[index], rid=rid, max_new_tokens=tokens, stream=rng.random() < 0.5
        )
        if aborted:
            delay.join()
        if answer.status != 200:
            self.wrong.append(f"HTTP {answer.status}: {answer.body}")
            return
        got = answer.body.get("output_ids") or []
        ended = answer.body["meta_info"]["finish_reason"]["type"] == "abort"
        expected = self._reference[index][:tokens]
        if ended and aborted:
            self.aborts += 1
            expected = expected[: len(got)]
        self.answers += 1
        if got != expected:
            self.wrong.append(f"prompt {index}, {tokens} tokens: {got} instead of {expected}")


@dataclass
class Asked:
    """What many clients did."""

    answers: int = 0
    aborts: int = 0

    def ask(self, served, prompts, reference, seconds: float, clients: int = 16) -> None:
        """Let clients ask for a while, or until one gets a wrong answer: that fails."""
        until, noticed = time.monotonic() + seconds, threading.Event()
        asking = [
            Client(served, number, prompts, reference, until, noticed) for number in range(clients)
        ]
        for client in asking:
            client.start()
        for client in asking:
            client.join()
        assert [wrong for client in asking for wrong in client.wrong] == []
        self.answers += sum(client.answers for client in asking)
        self.aborts += sum(client.aborts for client in asking)


@pytest.mark.parametrize("turn", TURNS)
def test_soak(start, families, expected, turn) -> None:
    def soak(pool: str, page: int) -> None:
        with start(*FORCED, *POOLS[pool], "--page-size", str(page), env=LATE) as served:
            asked = Asked()
            end = time.monotonic() + SECONDS / len(TURNS)
            while time.monotonic() < end:
                seconds = min(ROUND_SECONDS, end - time.monotonic())
                asked.ask(served, families, expected, seconds)
                served.assert_clean()
                # SGLang counts anew with each prefill: what is there then is of this request.
                served.generate(families[0], max_new_tokens=1)
                assert_host_holds_at_most(served, len(families[0]))
            counted = {name: served.total(f"tokenflow:{name}") for name in COUNTED}
            print(f"{pool}, page {page}: {asked}, {counted}")
            assert counted["preemptions_total"] > asked.answers
            assert counted["written_ahead_tokens_total"]
            assert asked.aborts
            missed = "loaded_ahead" if pool == "large host" else "resume_recomputed"
            assert any(value for name, value in counted.items() if name.startswith(missed))

    with concurrent.futures.ThreadPoolExecutor(len(turn)) as servers:
        list(servers.map(soak, *zip(*turn, strict=True)))


def test_controls_reading_what_is_still_being_loaded_are_noticed(start, families, expected) -> None:
    def ask(broken: str) -> str:
        env = {**LATE, "TOKENFLOW_TEST_BREAK": broken}
        with (
            start(*FORCED, *POOLS["large host"], program=BROKEN, env=env) as served,
            pytest.raises(AssertionError) as noticed,
        ):
            Asked().ask(served, families, expected, 60.0)
        return str(noticed.value)

    controls = ("no-wait", "no-guard")
    with concurrent.futures.ThreadPoolExecutor(len(controls)) as both:
        assert all("prompt" in message for message in both.map(ask, controls))


def assert_host_holds_at_most(served, tokens: int) -> None:
    """No page of the host is leaked; SGLang reports a prefill a moment after its answer."""
    end = time.monotonic() + 10.0
    while (held := host_tokens(served)) > tokens and time.monotonic() < end:
        time.sleep(0.2)
    assert held <= tokens


def host_tokens(served) -> float:
    """Tokens that the host pool holds, by SGLang's own metric."""
    with urllib.request.urlopen(served.server.url + "/metrics", timeout=30) as response:
        text = response.read().decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "sglang:hicache_host_used_tokens"
    )
