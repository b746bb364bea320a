"""A server under random arrivals, preemptions, writes, loads, aborts and flushes, for a while.

Only if TOKENFLOW_SOAK_MINUTES says for how long:

    TOKENFLOW_SOAK_MINUTES=30 make test ARGS=tests/engine/test_soak.py
"""

from __future__ import annotations

import os
import random
import threading
import time
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

MINUTES = float(os.environ.get("TOKENFLOW_SOAK_MINUTES", "0"))
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not MINUTES, reason="takes as many minutes as TOKENFLOW_SOAK_MINUTES says"),
]

ROUND_SECONDS = 20.0
"""After so long everybody stops, and the server has to be as empty as it was at first."""
CLIENTS = 16
ABORTED = 0.15
"""Share of the requests that are aborted after up to a second."""
POOLS = {
    # Twelve streams need about 1,350 tokens.
    "large host": ("--max-total-tokens", "704", "--hicache-ratio", "4"),
    "small host": ("--max-total-tokens", "704", "--hicache-ratio", "0.5"),
}


class Client(threading.Thread):
    """Asks one question after the other, and compares what it gets with the reference."""

    def __init__(self, served, number, prompts, reference, until) -> None:
        super().__init__()
        self._served, self._prompts, self._reference = served, prompts, reference
        self._rng = random.Random(f"{number} {until}")
        self._number, self._until = number, until
        self.wrong: list[str] = []
        self.answers = self.aborts = 0

    def run(self) -> None:
        while time.monotonic() < self._until and not self.wrong:
            time.sleep(self._rng.expovariate(5.0))
            self._ask(self._rng.randrange(len(self._prompts)))

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


@pytest.mark.parametrize("pool", POOLS)
def test_soak(start, prompts, reference, pool) -> None:
    flags = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
    answers = aborts = 0
    with start(*flags, *POOLS[pool]) as served:
        end = time.monotonic() + 60.0 * MINUTES / len(POOLS)
        while time.monotonic() < end:
            until = min(time.monotonic() + ROUND_SECONDS, end)
            clients = [
                Client(served, number, prompts, reference, until) for number in range(CLIENTS)
            ]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
            assert [wrong for client in clients for wrong in client.wrong] == []
            answers += sum(client.answers for client in clients)
            aborts += sum(client.aborts for client in clients)
            served.assert_clean()
            # SGLang counts anew with each prefill: what is there then is of this request at most.
            served.generate(prompts[0], max_new_tokens=1)
            assert host_tokens(served) <= len(prompts[0]), "pages of the host are leaked"
        print(
            f"{pool}: {answers} answers, {aborts} aborted, "
            + ", ".join(
                f"{served.total(f'tokenflow:{name}_total'):.0f} {name}"
                for name in ("preemptions", "written_ahead_tokens", "loaded_ahead_tokens")
            )
        )
        assert served.total("tokenflow:preemptions_total") > answers
        assert aborts


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
