"""What must hold when nobody asks any more: alive, idle, empty, and nothing in the log."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
from attacker.clients import post
from attacker.truth import Subject
from prometheus_client.parser import text_string_to_metric_families
from servers.client import Served

SETTLE_SECONDS = 60.0
SAMPLE_SECONDS = 1.2
"""Gauges are handed on once a second."""
EMPTY = (
    "tokenflow:running_streams",
    "tokenflow:paused_streams",
    "tokenflow:waiting_streams",
    "tokenflow:stalled_streams",
    "tokenflow:policy_errors_total",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "sglang:num_grammar_queue_reqs",
)
"""Metrics that are zero."""
LOADS = ("num_running_reqs", "num_waiting_reqs", "num_used_tokens")
"""What /v1/loads says is zero after a flush."""
HELD = ("sglang:num_used_tokens", "sglang:hicache_host_used_tokens")
"""Metrics that are zero but for the last, short answer."""
TROUBLE = ("leak", "Scheduler hit an exception", "Traceback", "ranks disagree", "failed; this pass")


@dataclass(frozen=True)
class Aftermath:
    """A server that was attacked.

    Attributes:
        served: The server.
        probe: What it is asked when all is over.
        trouble: Words that its log must not have.
    """

    served: Served
    probe: Subject
    trouble: tuple[str, ...] = TROUBLE

    def check(self) -> None:
        """Raises AssertionError."""
        served = self.served
        assert served.server.is_alive(), served.server.log_tail()
        self._flush()
        # SGLang counts anew with each prefill: what is there then is of these requests.
        for rank in range(ranks := len(self._ranks())):
            of = {"routed_dp_rank": rank} if ranks > 1 else {}
            answer: Any = served.generate(list(self.probe.prompt), max_new_tokens=1, **of)
            assert answer.status == 200, answer
            assert tuple(answer.body["output_ids"]) == self.probe.ids[:1], answer
        self._settle(self._left)
        self._flush()
        self._settle(self._loads)
        text = served.log()
        for trouble in self.trouble:
            assert trouble not in text, text[-6000:]

    def _flush(self) -> None:
        """Empty the caches of every data-parallel rank.

        Each waits until it is idle, which takes a pass of its loop, up to a second when nothing
        comes, for every time that it asks for a late copy. SGLang returns the first reply only.
        """
        answer = self.served.post(f"/flush_cache?timeout={SETTLE_SECONDS}", None)
        assert answer.status == 200, answer

    def _settle(self, look: Callable[[], dict[str, float]]) -> None:
        """Wait until it is said that nothing is left."""
        time.sleep(SAMPLE_SECONDS)  # what was said before may be of another moment
        end = time.monotonic() + SETTLE_SECONDS
        while left := look():
            assert time.monotonic() < end, f"left on an idle server: {left}"
            time.sleep(0.2)

    def _ranks(self) -> list[dict[str, float]]:
        """What /v1/loads says of each data-parallel rank."""
        status, text = post(self.served.server.port, "/v1/loads", None, "GET")
        assert status == 200, text
        loads: list[dict[str, float]] = json.loads(text)["loads"]
        return loads

    def _loads(self) -> dict[str, float]:
        """What of LOADS is there; the scheduler hands it on now and then."""
        ranks = self._ranks()
        left = {name: sum(loads[name] for loads in ranks) for name in LOADS}
        return {name: value for name, value in left.items() if value}

    def _left(self) -> dict[str, float]:
        _, text = post(self.served.server.port, "/metrics", None, "GET")
        left: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                allowed = len(self.probe.prompt) if sample.name in HELD else 0
                if sample.name in (*EMPTY, *HELD) and sample.value > allowed:
                    left[f"{sample.name} {sample.labels.get('tp_rank', '')}"] = sample.value
        return left


def resident(ports: Sequence[int]) -> int:
    """Bytes that all processes of the servers hold, what they share counted each time."""
    groups = {
        os.getpgid(listening.pid)
        for listening in psutil.net_connections("tcp")
        if listening.status == psutil.CONN_LISTEN
        and listening.laddr.port in ports
        and listening.pid is not None
    }
    total = 0
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) in groups:
                total += process.memory_info().rss
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return total
