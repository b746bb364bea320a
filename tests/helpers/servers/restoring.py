"""Servers with a storage whose planner splits each prefix where a test wants it."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servers.fixtures import BROKEN

from tokenflow_sgl_emulator.storage.storage_flags import storage_flags

SPLIT = "TOKENFLOW_TEST_SPLIT"
"""Variable with the file that tells the planner `splits:SplitAt` what to do."""
PREFIX, SUFFIX, FORK, NEW = 384, 20, 320, 12
"""Tokens of a prompt in whole pages, behind them, before a fork, and of an answer."""
SLOW = 0.004
"""Gigabits/s: the tail takes about a second, so that the head is begun before it is there."""
FAST = 10.0
AHEAD = "tokenflow:restore_copied_ahead_tokens_total"
LAYERS = 4
"""Of models whose prefixes are restored by layers."""
SAME = 1e-4
"""Difference of log probabilities up to which they are the same."""
SLOWER = (1.0, 2.0, 4.0, 6.0, 7.0, 8.0)
"""By how much the link is slower in each try. A machine that stands still for a second lets all of
the tail arrive before the head is begun; over the slowest link it takes eight seconds, and a batch
of it less than the ten for which SGLang waits when it flushes the caches."""


@dataclass(frozen=True)
class Said:
    """What a server answered: tokens, their log probabilities, and tokens from the storage."""

    tokens: list[int]
    chances: list[float]
    stored: int

    def like(self, other: Said) -> bool:
        if self.tokens != other.tokens:
            return False
        pairs = zip(self.chances, other.chances, strict=True)
        return all(abs(a - b) <= SAME for a, b in pairs)


class Restoring:
    """A server with a storage, the split that its planner is to make, and its link's settings."""

    def __init__(self, served: Any, folder: Path, page: int, crowd: int = 0, **asking: Any) -> None:
        self.served, self._folder, self._page, self._crowd = served, folder, page, crowd
        self._asking = {"max_new_tokens": NEW, "return_logprob": True, **asking}
        self.end = (PREFIX + SUFFIX - 1) // page * page
        """Tokens that the storage has of a prompt."""
        self._random = rng = random.Random(3)
        self._prompt = [rng.randrange(10, 200) for _ in range(PREFIX + SUFFIX)]
        self._fork = self._prompt[:FORK] + [rng.randrange(10, 200) for _ in range(SUFFIX)]
        self._layers = LAYERS

    def read(self, text: list[int], layers: int) -> None:
        """Ask a text of the tokens that are needed, of a model with so many layers."""
        assert len(text) >= PREFIX + 2 * SUFFIX
        self._layers = layers
        self._prompt = text[: PREFIX + SUFFIX]
        self._fork = text[:FORK] + text[PREFIX + SUFFIX : PREFIX + 2 * SUFFIX]

    def split(self, head: int | str) -> None:
        self._tell("split", str(head))

    def link(self, **settings: object) -> None:
        self._tell("control", json.dumps(settings))

    def _tell(self, name: str, text: str) -> None:
        """Write a file that the server may be about to read: it sees all of the text or none."""
        scratch = self._folder / f"{name}-next"
        scratch.write_text(text)
        os.replace(scratch, self._folder / name)

    def try_until_right(self, attempt: Callable[[], str], **faults: Any) -> None:
        """Try over a link that is slower each time, so that a tail comes late on any machine.

        attempt: says what was wrong, or nothing. faults: of the link.
        """
        wrong, slow = "", float(faults.pop("slow_factor", 1.0))
        try:
            for slower in SLOWER:
                # New settings: what the link counts of its faults, it counts anew.
                self.link(**faults, slow_factor=slow * slower)
                wrong = attempt()
                if not wrong:
                    return
        finally:
            self.link()
        raise AssertionError(wrong)

    def ask(self, ids: list[int]) -> Said:
        answer = self.served.generate(ids, **self._asking)
        assert answer.status == 200, answer
        meta = answer.body["meta_info"]
        chances = [float(chance) for chance, *_ in meta["output_token_logprobs"]]
        details = meta["cached_tokens_details"] or {}
        assert meta["cached_tokens"] == sum(v for v in details.values() if isinstance(v, int))
        return Said(answer.body["output_ids"], chances, details.get("storage", 0))

    def asking(self, **asking: Any) -> Restoring:
        """The same server, whose requests also say this."""
        return Restoring(
            self.served, self._folder, self._page, self._crowd, **{**self._asking, **asking}
        )

    def both(self) -> tuple[Said, Said]:
        """The prompt, and the one that forks within its tail; then only the storage has them."""
        said = self.ask(self._prompt), self.ask(self._fork)
        self.served.flush_when_idle()
        return said

    def both_elsewhere(self) -> tuple[Said, Said]:
        """As `both`, where the device's memory has another prompt's KV from before.

        A request gets the same places as one before it. What is not copied there would be right.
        """
        self.ask([self._random.randrange(10, 200) for _ in range(4 * PREFIX)])
        self.served.flush_when_idle()
        return self.both()

    def computed(self) -> tuple[Said, Said]:
        """What they say when nothing comes from a cache; and they are in the storage."""
        self.split(PREFIX + SUFFIX)
        said = [self._first(ids) for ids in (self._prompt, self._fork)]
        assert said[0].stored == 0
        return said[0], said[1]

    def _first(self, ids: list[int]) -> Said:
        said = self.ask(ids)
        # With write-back only what is evicted gets to the host, and on to the storage.
        for _ in range(self._crowd):
            self.ask([self._random.randrange(10, 200) for _ in range(PREFIX)])
        self.served.flush_when_idle()
        return said

    def check_splits(self, heads: tuple[int, ...], wanted: tuple[Said, Said]) -> None:
        for head in heads:

            def split_there(head: int = head) -> str:
                prompt, fork = self.both()
                assert prompt.like(wanted[0]), (head, prompt, wanted[0])
                assert fork.like(wanted[1]), (head, fork, wanted[1])
                if prompt.stored == self.end - min(head // self._page * self._page, self.end):
                    return ""
                return f"a head of {head} tokens was never computed: {prompt.stored}"

            self.split(head)
            self.try_until_right(split_there)

    def check_layers(self, splits: tuple[int, ...], wanted: tuple[Said, Said]) -> None:
        """So many lower layers of a prefix computed, and the upper ones fetched."""
        for layers in splits:

            def split_there(layers: int = layers) -> str:
                before = self.by_layers()
                prompt, fork = self.both_elsewhere()
                assert prompt.like(wanted[0]), (layers, prompt, wanted[0])
                assert fork.like(wanted[1]), (layers, fork, wanted[1])
                done, fetched = (a - b for a, b in zip(self.by_layers(), before, strict=True))
                expected = self.end * (self._layers - layers) // self._layers
                if (done, fetched) == (1.0, expected):
                    return ""
                return f"{layers} layers were never computed: {done}, {fetched} of {expected}"

            self.split(f"layers {layers}")
            self.try_until_right(split_there)

    def by_layers(self) -> tuple[float, float]:
        """Prefixes restored by layers, and tokens that were fetched, of any prefixes."""
        return (
            self.served.labelled("tokenflow:restorations_total", way="layers"),
            self.served.labelled("tokenflow:restored_tokens_total", source="fetched"),
        )


@contextmanager
def restoring(
    start: Any,
    folder: Path,
    *flags: str,
    page: int,
    break_: str = "",
    crowd: int = 0,
    gbps: float = SLOW,
    model: Path | None = None,
    chunk: int = 64,
    files: Path | None = None,
) -> Iterator[Restoring]:
    """A server of the kind.

    files: SGLang's `file` backend keeps the pages there, on a link of which nothing can be set.
    """
    storage = storage_flags(
        prefetch_tokens=64, read_gbps=gbps, write_gbps=FAST, control=str(folder / "control")
    )
    own = (
        *("--page-size", str(page), "--chunked-prefill-size", str(chunk)),
        *("--hicache-ratio", "2"),
        *("--max-total-tokens", "2048", "--tokenflow-restore", "splits:SplitAt"),
    )
    env = {SPLIT: str(folder / "split"), "TOKENFLOW_EMU_LATE_COPIES": "4"}
    if files is not None:
        env["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = str(files)
        extra = json.dumps({"prefetch_threshold": 64})
        storage = ["--enable-hierarchical-cache", "--hicache-storage-backend", "file"]
        storage += ["--hicache-storage-backend-extra-config", extra]
    (folder / "split").write_text("0")
    program = {}
    if break_:
        env["TOKENFLOW_TEST_BREAK"], program = break_, {"program": BROKEN}
    with start(*own, *storage, *flags, env=env, model=model, **program) as served:
        yield Restoring(served, folder, page, crowd)
