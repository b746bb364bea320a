"""An operator who pauses, flushes, sweeps and swaps weights while clients are served."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

from attacker.clients import post
from attacker.journal import Journal

RARE = {"sweep": 0.3, "pause-abort": 0.3, "weights": 0.2, "weights-sweep": 0.2}
"""How often what ends all streams, or waits for all of them, is done where others are done once."""
NOT_FLUSHED = "the cache was not flushed"
LONGEST_PAUSE = 0.6
"""Seconds."""


class Operator(threading.Thread):
    """One at a time, so that nobody pauses a paused server.

    Args:
        port: Of the server.
        seed: Of its random numbers.
        weights: A folder with the weights that the server has.
        without: Names of actions, and of what is done in pauses, that it leaves out.
        journal: Where it says what it does.
        until: When it stops, by time.monotonic().
    """

    def __init__(
        self,
        port: int,
        seed: str,
        weights: Path,
        without: frozenset[str],
        journal: Journal,
        until: float,
    ) -> None:
        super().__init__(name="operator")
        self._port, self._weights = port, str(weights)
        self._rng = random.Random(f"{seed} operator")
        self._journal, self._until = journal, until
        self._without = without
        self._actions: dict[str, Callable[[], None]] = {
            "sweep": self._sweep,
            "pause-abort": self._pause_and_abort,
            "pause-in-place": lambda: self._pause("in_place"),
            "pause-retract": lambda: self._pause("retract"),
            "flush": lambda: self._flush(),
            "flush-deferred": lambda: self._flush("?timeout=1"),
            "weights": self._swap_weights_between_answers,
            "weights-sweep": self._sweep_and_swap_weights,
            "look": self._look,
        }
        self._in_pause: dict[str, dict[str, Callable[[], None]]] = {
            "in_place": {
                "wait": lambda: None,
                "in-place-flush": self._flush,
                "in-place-sweep": self._sweep,
                "in-place-weights": lambda: self._swap_weights(flush_cache=False),
                "in-place-look": self._look_at_loads,
            },
            "retract": {
                "wait": lambda: None,
                "retract-flush": lambda: self._flush(must=True),
                "retract-sweep": self._sweep,
                "retract-weights": lambda: self._swap_weights(flush_cache=True),
                "retract-look": self._look_at_loads,
            },
        }

    def run(self) -> None:
        """Do one thing after the other until the round is over."""
        for step in (self._operate, lambda: self._demand("/continue_generation", {})):
            try:
                step()
            except Exception as error:
                self._journal.accuse(self.name, repr(error))

    def _operate(self) -> None:
        names = [name for name in self._actions if name not in self._without]
        shares = [RARE.get(name, 1.0) for name in names]
        while time.monotonic() < self._until and not self._journal.noticed.is_set():
            time.sleep(self._rng.expovariate(2.0))
            self._do(self._rng.choices(names, shares)[0], self._actions)

    def _do(self, name: str, actions: dict[str, Callable[[], None]]) -> None:
        self._journal.note(self.name, name)
        self._journal.count(name)
        actions[name]()

    def _demand(self, path: str, body: object, *allowed: int) -> str:
        status, text = post(self._port, path, body)
        self._journal.note(self.name, f"{path}: HTTP {status}")
        if status not in (200, *allowed):
            self._journal.accuse(self.name, f"{path} {body}: HTTP {status} {text[:500]}")
        return text

    def _sweep(self) -> None:
        with self._journal.sweep():
            self._demand("/abort_request", {"abort_all": True})

    def _pause_and_abort(self) -> None:
        with self._journal.sweep():
            self._demand("/pause_generation", {"mode": "abort"})
            time.sleep(self._rng.random() * LONGEST_PAUSE)
            self._demand("/continue_generation", {})

    def _pause(self, mode: str) -> None:
        self._demand("/pause_generation", {"mode": mode})
        actions = self._in_pause[mode]
        for _ in range(self._rng.randint(1, 3)):
            time.sleep(self._rng.random() * LONGEST_PAUSE / 3)
            names = [name for name in actions if name not in self._without]
            self._do(self._rng.choice(names), actions)
        self._demand("/continue_generation", {})

    def _flush(self, query: str = "", *, must: bool = False) -> None:
        """`must`: nothing runs, so it has to be done; else it may be refused."""
        self._demand(f"/flush_cache{query}", None, *(() if must else (400,)))

    def _swap_weights_between_answers(self) -> None:
        """SGLang waits until all that it serves has ended."""
        self._swap_weights(flush_cache=self._rng.random() < 0.7, busy=True)

    def _sweep_and_swap_weights(self) -> None:
        with self._journal.sweep():
            self._swap_weights(flush_cache=True, abort_all_requests=True, busy=True)

    def _swap_weights(self, *, busy: bool = False, **how: bool) -> None:
        """For the same weights in another folder: what is answered stays what it is.

        busy: the last step of what has ended may be in flight, for which SGLang does not wait.
        """
        body = {"model_path": self._weights, **how}
        text = self._demand("/update_weights_from_disk", body, *((400,) if busy else ()))
        if not json.loads(text).get("success") and not (busy and NOT_FLUSHED in text):
            self._journal.accuse(self.name, f"weights, {how}: {text}")

    def _look(self) -> None:
        self._look_at_loads()
        # Not of a paused server: it answers after 20 seconds that it is not healthy.
        status, text = post(self._port, "/health", None, "GET")
        if status != 200:
            self._journal.accuse(self.name, f"/health: HTTP {status} {text[:500]}")

    def _look_at_loads(self) -> None:
        """What it sees must make sense at any moment."""
        for path in ("/v1/loads", "/metrics", "/server_info"):
            status, text = post(self._port, path, None, "GET")
            if status != 200:
                self._journal.accuse(self.name, f"{path}: HTTP {status} {text[:500]}")
            elif path == "/v1/loads":
                for loads in json.loads(text)["loads"]:  # of data-parallel ranks
                    self._check_loads(loads)

    def _check_loads(self, loads: dict[str, float]) -> None:
        counts = {name: loads[name] for name in ("num_running_reqs", "num_waiting_reqs")}
        negative = {name: value for name, value in counts.items() if value < 0}
        if negative or not 0 <= loads["num_used_tokens"] <= loads["max_total_num_tokens"]:
            self._journal.accuse(self.name, f"/v1/loads makes no sense: {loads}")
