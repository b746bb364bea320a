"""Many operations at once on a server that restores prefixes; each is drawn from its number.

What is asked has to have the answer of undisturbed SGLang, or a beginning of it if it is aborted.
Meanwhile clients leave, prefixes are prefetched in SGLang's own way, the storage fails, the engine
is paused, and the caches are to be flushed.
"""

from __future__ import annotations

import collections
import concurrent.futures
import json
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

from servers.client import Answer, Served
from servers.restoring import SAME
from stress.prompts import NEW, Prompt, body_of, chances_of

CLIENTS = 12
LONGEST = 0.8
"""Seconds after which a client leaves, or aborts, at most."""
FAULTS: tuple[dict[str, object], ...] = (
    *({} for _ in range(5)),
    {"missing": 0.2},
    {"corrupt": 0.2},
    {"raising": 0.2},
    {"dead_after_pages": 40},
    {"dead_after_s": 0.0, "dead_reply_s": 0.05},
    {"slow_factor": 8.0},
)
"""What the link to the storage may be like."""
SHARES = {
    "ask": 50,
    "family": 12,
    "prefetch": 12,
    "leave": 10,
    "abort": 8,
    "fault": 6,
    "pause": 1,
    "flush": 1,
}
"""Of what is done, in percent."""
FAMILY = 3
"""Requests of one stem at a time."""


class Storm:
    """Operations on one server.

    Args:
        served: The server.
        prompts: What is asked, each `forks` of them of one stem.
        forks: So many.
        control: The file from which the link's settings are read.
        seed: Of all operations.
        without: What is not done.

    Attributes:
        wrong: What was wrong, by operation.
        counts: How often what was done, and what came of it.
    """

    def __init__(
        self,
        served: Served,
        prompts: list[Prompt],
        forks: int,
        control: Path,
        seed: int,
        without: frozenset[str] = frozenset(),
    ) -> None:
        self._served, self._prompts, self._forks = served, prompts, forks
        self._control, self._seed = control, seed
        self._kinds = {kind: share for kind, share in SHARES.items() if kind not in without}
        self._lock = threading.Lock()
        self._pausing = threading.Lock()  # one at a time
        self.wrong: list[str] = []
        self.counts: collections.Counter[str] = collections.Counter()

    def rage(self, operations: int) -> None:
        """Do so many, as many at a time as there are clients."""
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(self._operate, range(operations)))
        self.link()

    def link(self, **settings: object) -> None:
        """From now on the storage's link is like that."""
        with self._lock:
            scratch = self._control.with_suffix(".next")
            scratch.write_text(json.dumps(settings))
            os.replace(scratch, self._control)

    def _operate(self, number: int) -> None:
        rng = random.Random(f"{self._seed} {number}")
        kind = rng.choices(list(self._kinds), list(self._kinds.values()))[0]
        self._count(kind)
        try:
            # SGLang aborts all whose ids begin like the one that it is told.
            getattr(self, f"_{kind}")(rng, f"storm-{self._seed}-{number:06}.")
        except Exception as error:
            self._accuse(number, f"{kind}: {error!r}")

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def _accuse(self, number: object, what: str) -> None:
        self.wrong.append(f"operation {number} of seed {self._seed}: {what}")

    # ---- what is done ---------------------------------------------------------------

    def _ask(self, rng: random.Random, rid: str) -> None:
        self._judge(rng.choice(self._prompts), rng.randint(1, NEW), rid)

    def _family(self, rng: random.Random, rid: str) -> None:
        """Several that begin alike, at the same time."""
        first = rng.randrange(len(self._prompts) // self._forks) * self._forks
        some = rng.sample(range(first, first + self._forks), FAMILY)
        asked = [(self._prompts[each], rng.randint(1, NEW), f"{rid}-{each}") for each in some]
        with concurrent.futures.ThreadPoolExecutor(FAMILY) as pool:
            for each in [pool.submit(self._judge, *one) for one in asked]:
                each.result()

    def _prefetch(self, rng: random.Random, rid: str) -> None:
        """Where a prompt's own log probabilities are wanted, SGLang's prefetch is left alone."""
        prompt = rng.choice(self._prompts)
        start = len(prompt.ids) - rng.randint(2, 24)
        meta = self._judge(prompt, rng.randint(1, NEW), rid, logprob_start_len=start)
        own = chances_of(meta, "input_token")
        wanted = prompt.own[len(prompt.own) - len(own) :]
        if not own or not _same(own, wanted):
            self._accuse(rid, f"the prompt's log probabilities are {own} instead of {wanted}")
        if (meta["cached_tokens_details"] or {}).get("storage"):
            self._count("prefetched")

    def _leave(self, rng: random.Random, rid: str) -> None:
        prompt = rng.choice(self._prompts)
        self._served.leave(prompt.ids, rng.uniform(0.0, LONGEST), rid=rid)

    def _abort(self, rng: random.Random, rid: str) -> None:
        prompt, seconds = rng.choice(self._prompts), rng.uniform(0.0, LONGEST)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(self._judge, prompt, NEW, rid, aborted=True)
            time.sleep(seconds)
            self._served.post("/abort_request", {"rid": rid})
            asked.result()

    def _fault(self, rng: random.Random, rid: str) -> None:
        self.link(**rng.choice(FAULTS))

    def _pause(self, rng: random.Random, rid: str) -> None:
        with self._pausing:
            self._demand("/pause_generation", {"mode": rng.choice(("in_place", "retract"))})
            time.sleep(rng.uniform(0.0, 0.3))
            self._demand("/continue_generation", {})

    def _flush(self, rng: random.Random, rid: str) -> None:
        """Mostly refused."""
        if self._served.post("/flush_cache", None).status == 200:
            self._count("flushed")

    def _demand(self, path: str, body: dict[str, Any]) -> None:
        answer = self._served.post(path, body)
        assert answer.status == 200, (path, answer)

    # ---- what comes of it -----------------------------------------------------------

    def _judge(
        self, prompt: Prompt, new: int, rid: str, *, aborted: bool = False, **more: Any
    ) -> dict[str, Any]:
        """Ask, and hold the answer against the right one; returns what it says of itself."""
        answer: Answer = self._served.post("/generate", body_of(prompt.ids, new, rid=rid, **more))
        if answer.status != 200:
            self._accuse(rid, f"HTTP {answer.status}: {answer.body}")
            return {}
        meta: dict[str, Any] = answer.body["meta_info"]
        tokens, chances = answer.body["output_ids"], chances_of(meta, "output_token")
        ended = meta["finish_reason"]["type"]
        right = min(new, len(prompt.tokens))
        if ended == "abort" and aborted:
            self._count("aborted")
            right = len(tokens)
        wanted = prompt.tokens[:right], prompt.chances[:right]
        if tokens != wanted[0] or not _same(chances, wanted[1]):
            details = f"{ended}, {meta.get('cached_tokens_details')}, prompt of {len(prompt.ids)}"
            self._accuse(rid, f"{tokens} {chances} instead of {wanted} ({details})")
        return meta


def _same(found: list[float], wanted: list[float]) -> bool:
    pairs = zip(found, wanted, strict=False)
    return len(found) == len(wanted) and all(abs(one - other) <= SAME for one, other in pairs)
