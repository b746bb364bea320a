"""Rounds of attacks on one server: many clients and an operator, then what is left behind."""

from __future__ import annotations

import collections
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attacker.aftermath import Aftermath, resident
from attacker.clients import Client
from attacker.journal import Journal
from attacker.operators import Operator
from attacker.replies import BUSY, CROWDED, FULL, Allowed
from attacker.truth import Subject
from servers.client import Served

CLIENTS = 16
ROUND_SECONDS = 10.0
"""After so long everybody stops, and the server has to be as empty as it was at first."""
WARMING = 3
"""Rounds in which a server may still grow: caches of torch, of Python, of the tokenizer."""


@dataclass
class Campaign:
    """Attacks on one server.

    Attributes:
        served: The server.
        subjects: What is asked, and the answers.
        weights: A folder with the weights that the server has.
        seed: Of the first round; the next one has the next.
        without: Names of actions that are left out; see asking.py and operators.py.
        full: The server has a limit to its queue.
        door: It tells tenants apart, and refuses what would wait for long.
        beyond: Tokens by which an aborted answer may exceed its limit.
        late: Seconds by which SGLang's end of all requests may be late.
        torn: What was aborted may be told as an error.
        counts: How often what happened.
        memory: Bytes that the server held after each round.
    """

    served: Served
    subjects: Sequence[Subject]
    weights: Path
    seed: int
    without: frozenset[str] = frozenset()
    full: bool = False
    door: bool = False
    beyond: int = 0
    late: float = 0.0
    torn: bool = False
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    memory: list[int] = field(default_factory=list)

    def attack(self, seconds: float, round_seconds: float = ROUND_SECONDS) -> None:
        """Attack for so long; the first thing that is wrong is raised as an AssertionError."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0.0:
            self._round(min(left, round_seconds))

    def _round(self, seconds: float) -> None:
        journal = Journal(self.late)
        served, seed = self.served, str(self.seed + self.counts["rounds"])
        port, until = served.server.port, time.monotonic() + seconds
        operator = Operator(port, seed, self.weights, self.without, journal, until)
        refusals = (FULL,) * self.full + (BUSY, CROWDED) * self.door
        allowed = Allowed(refusals, self.beyond, self.torn)
        clients = [
            Client(
                port,
                f"{seed}-{number}",  # what SGLang keeps of an id must not meet it again
                seed,
                self.subjects,
                self.without,
                journal,
                until,
                door=self.door,
                allowed=allowed,
            )
            for number in range(CLIENTS)
        ]
        everybody = [operator, *clients]
        for each in everybody:
            each.start()
        for each in everybody:
            each.join()
        self.counts += journal.counts
        self.counts["rounds"] += 1
        self._hold(journal, seed)
        self.memory.append(resident(served.ports))

    def _hold(self, journal: Journal, seed: str) -> None:
        """Raise what was wrong, and how to see it again."""
        wrong = "\n".join(journal.wrong)
        if not wrong:
            try:
                Aftermath(self.served, self.subjects[0]).check()
            except Exception as error:
                wrong = f"afterwards: {error!r}" if not str(error) else f"afterwards: {error}"
        if wrong:
            raise AssertionError(
                f"{wrong}\nTOKENFLOW_ATTACK_SEED={seed} begins with this round, after "
                f"{dict(self.counts)}. Its last actions (seconds, who, what):\n{journal.last()}\n"
                f"The server's log ends:\n{self._log_end()}"
            )

    def _log_end(self, lines: int = 30) -> str:
        """Without the line that the HTTP server writes for each request."""
        text = self.served.log().splitlines()
        return "\n".join([line for line in text if "INFO:   " not in line][-lines:])

    def growth(self) -> float | None:
        """Share by which the server has grown since it was warm; None: it was too short."""
        if len(self.memory) <= WARMING:
            return None
        return self.memory[-1] / self.memory[WARMING - 1] - 1.0
