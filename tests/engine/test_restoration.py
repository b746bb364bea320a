"""A prefix that is computed from its head and fetched from its tail gives stock SGLang's tokens.

Attention does not care in which order keys lie, so a request that reads pages in a wrong order may
still say the right thing. One that goes another way within the tail does not: each split is asked
both.
"""

from __future__ import annotations

import concurrent.futures
import json
import random
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from servers.fixtures import BROKEN

from tokenflow_sgl_emulator.storage.storage_flags import storage_flags

pytestmark = pytest.mark.engine

SPLIT = "TOKENFLOW_TEST_SPLIT"
"""Variable with the file that tells the planner `splits:SplitAt` what to do."""
PREFIX, SUFFIX, FORK, NEW = 384, 20, 320, 12
"""Tokens of a prompt in whole pages, behind them, before a fork, and of an answer."""
SLOW = 0.004
"""Gigabits/s: the tail takes about a second, so that the head is begun before it is there."""
FAST = 10.0
WRITE_BACK = (
    *("--hicache-write-policy", "write_back", "--max-total-tokens", "512"),
    # SGLang has nowhere to evict to while a busy machine still writes the host's memory to storage.
    *("--hicache-ratio", "8"),
)
AHEAD = "tokenflow:restore_copied_ahead_tokens_total"
SAME = 1e-4
"""Difference of log probabilities up to which they are the same."""
TRIES = 6
"""A machine that stands still for a second lets all of the tail arrive before the head is begun."""


@dataclass(frozen=True)
class Said:
    """What a server answered: tokens, their log probabilities, and tokens from the storage."""

    tokens: list[int]
    chances: list[float]
    stored: int

    def like(self, other: Said) -> bool:
        pairs = zip(self.chances, other.chances, strict=True)
        return self.tokens == other.tokens and all(abs(a - b) <= SAME for a, b in pairs)


class Restoring:
    """A server with a storage, the split that its planner is to make, and its link's settings."""

    def __init__(self, served: Any, folder: Path, page: int, crowd: int) -> None:
        self.served, self._folder, self._page, self._crowd = served, folder, page, crowd
        self.end = (PREFIX + SUFFIX - 1) // page * page
        """Tokens that the storage has of a prompt."""
        self._random = rng = random.Random(3)
        self._prompt = [rng.randrange(10, 200) for _ in range(PREFIX + SUFFIX)]
        self._fork = self._prompt[:FORK] + [rng.randrange(10, 200) for _ in range(SUFFIX)]

    def split(self, head: int) -> None:
        (self._folder / "split").write_text(str(head))

    def link(self, **settings: object) -> None:
        (self._folder / "control").write_text(json.dumps(settings))

    def ask(self, ids: list[int]) -> Said:
        answer = self.served.generate(ids, max_new_tokens=NEW, return_logprob=True)
        assert answer.status == 200, answer
        meta = answer.body["meta_info"]
        chances = [float(chance) for chance, *_ in meta["output_token_logprobs"]]
        details = meta["cached_tokens_details"] or {}
        assert meta["cached_tokens"] == sum(v for v in details.values() if isinstance(v, int))
        return Said(answer.body["output_ids"], chances, details.get("storage", 0))

    def both(self) -> tuple[Said, Said]:
        """The prompt, and the one that forks within its tail; then only the storage has them."""
        said = self.ask(self._prompt), self.ask(self._fork)
        self.served.flush_when_idle()
        return said

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
            self.split(head)
            for _ in range(TRIES):
                prompt, fork = self.both()
                assert prompt.like(wanted[0]), (head, prompt, wanted[0])
                assert fork.like(wanted[1]), (head, fork, wanted[1])
                if prompt.stored == self.end - min(head // self._page * self._page, self.end):
                    break
            else:
                raise AssertionError(f"a head of {head} tokens was never computed: {prompt.stored}")


@contextmanager
def restoring(
    start: Any,
    folder: Path,
    *flags: str,
    page: int,
    break_: str = "",
    crowd: int = 0,
    gbps: float = SLOW,
) -> Iterator[Restoring]:
    storage = storage_flags(
        prefetch_tokens=64, read_gbps=gbps, write_gbps=FAST, control=str(folder / "control")
    )
    own = (
        *("--page-size", str(page), "--chunked-prefill-size", "64", "--hicache-ratio", "2"),
        *("--max-total-tokens", "2048", "--tokenflow-restore", "splits:SplitAt"),
    )
    env = {SPLIT: str(folder / "split"), "TOKENFLOW_EMU_LATE_COPIES": "4"}
    (folder / "split").write_text("0")
    program = {}
    if break_:
        env["TOKENFLOW_TEST_BREAK"], program = break_, {"program": BROKEN}
    with start(*own, *storage, *flags, env=env, **program) as served:
        yield Restoring(served, folder, page, crowd)


@pytest.fixture(scope="module")
def stock(start, tmp_path_factory) -> Iterator[Restoring]:
    """SGLang's own scheduler, with nothing else of ours."""
    with restoring(start, tmp_path_factory.mktemp("stock"), page=16) as server:
        yield server


@pytest.fixture(scope="module")
def wanted(stock) -> tuple[Said, Said]:
    return stock.computed()


def test_every_split_gives_the_same_tokens(stock, wanted) -> None:
    stock.check_splits((0, 16, 64, 208, 320, 384, 400), wanted)
    stock.served.assert_clean()
    assert stock.served.total(AHEAD) > 0.0


@pytest.mark.parametrize(
    ("page", "flags"),
    [
        (1, ("--disable-overlap-schedule", *WRITE_BACK)),
        (64, ("--scheduler", "tokenflow")),
        (16, ("--scheduler", "tokenflow", "--tp-size", "2", "--tokenflow-check-ranks")),
    ],
    ids=("page 1, write-back, no overlap", "page 64, tokenflow", "two ranks"),
)
def test_under_other_settings_too(start, wanted, tmp_path, page, flags) -> None:
    crowd = 4 if set(WRITE_BACK) <= set(flags) else 0
    # Two ranks share the cores: they compute slowly, and each fetches half as much.
    gbps = SLOW / 5 if "--tp-size" in flags else SLOW
    with restoring(start, tmp_path, *flags, page=page, crowd=crowd, gbps=gbps) as server:
        server.computed()
        server.check_splits((64, 192, 320), wanted)
        server.served.assert_clean()
        # The device has no memory to spare where it is to write back.
        assert (server.served.total(AHEAD) > 0.0) == (not crowd)


def test_the_head_goes_on_where_the_host_has_the_beginning(stock, wanted) -> None:
    """Some of it on the host, some on the device, the rest in the storage."""
    stock.split(128)
    beginning = [*stock._prompt[:96], 5, 6, 7]
    for _ in range(TRIES):
        stock.ask(beginning)
        said = stock.ask(stock._prompt)
        assert said.like(wanted[0])
        if said.stored == stock.end - 128:
            break
        stock.served.flush_when_idle()
    else:
        raise AssertionError("the head was never begun behind a cached prefix")
    assert stock.ask(stock._fork).like(wanted[1])
    stock.served.flush_when_idle()


def test_what_two_prompts_share_is_fetched_once(stock, wanted) -> None:
    """Also where the first of the two is aborted."""
    stock.split(0)
    own = (SUFFIX - 1) // 16 * 16  # what only the fork has
    for _ in range(TRIES):
        before = len(stock.served.log())
        calls = [lambda ids=ids: stock.ask(ids) for ids in (stock._prompt, stock._fork)]
        said = stock.served.together(calls)
        assert all(map(Said.like, said, wanted))
        stock.served.flush_when_idle()
        fetched = re.findall(r"prefetch success .* completed=(\d+)", stock.served.log()[before:])
        if sum(map(int, fetched)) == stock.end + own:
            break
    else:
        raise AssertionError(f"each fetches all of its prefix: {fetched}")
    calls = [lambda: stock.served.leave(stock._prompt, 0.4), lambda: stock.ask(stock._fork)]
    assert stock.served.together(calls)[1].like(wanted[1])
    stock.served.flush_when_idle()
    stock.served.assert_clean()


def test_clients_that_leave_do_not_hurt_the_others(stock, wanted) -> None:
    """Aborted in its query, its fetch or its head, or while it waits for the tail."""
    served, rng = stock.served, random.Random(9)
    stock.split(160)

    def stay(ids: list[int]) -> Any:
        return lambda: served.generate(ids, max_new_tokens=NEW, return_logprob=True)

    def leave(number: int, seconds: float) -> Any:
        return lambda: served.leave(stock._prompt, seconds, rid=f"gone-{number}")

    for round_ in range(3):
        calls = [stay(stock._prompt), stay(stock._fork), stay(stock._prompt[:200])]
        calls += [leave(10 * round_ + i, rng.uniform(0.0, 1.5)) for i in range(4)]
        answers = served.together(calls)[:2]
        for answer, each in zip(answers, wanted, strict=True):
            assert answer.body["output_ids"] == each.tokens
        served.flush_when_idle()
    served.assert_clean()


@pytest.mark.parametrize(
    ("fault", "fails"),
    [
        ({"dead_after_pages": 9}, True),
        # These two make the query fail, so that nothing is fetched.
        ({"dead_after_s": 0.0, "dead_reply_s": 0.2}, False),
        ({"raising": 1.0}, False),
        ({"missing": 0.3}, True),
        ({"corrupt": 0.3}, True),
        ({"slow_factor": 3.0}, False),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else str(value),
)
def test_a_bad_storage_costs_time_only(stock, wanted, fault, fails) -> None:
    failed = stock.served.total("tokenflow:restore_fetch_failures_total")
    stock.split(64)
    stock.link(**fault)
    try:
        prompt, fork = stock.both()
    finally:
        stock.link()
    assert prompt.like(wanted[0])
    assert fork.like(wanted[1])
    assert (stock.served.total("tokenflow:restore_fetch_failures_total") > failed) == fails


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_a_pause_keeps_no_tail(stock, wanted, mode) -> None:
    """Also not of a request that is retracted, and fetches anew: the caches can be flushed."""
    stock.split(160)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stock.ask, stock._prompt)
        time.sleep(0.3)  # in its query, its fetch or its head; whatever it is
        assert stock.served.post("/pause_generation", {"mode": mode}).status == 200
        if mode == "retract":
            stock.served.flush_when_idle()
        assert stock.served.post("/continue_generation", {}).status == 200
        assert asked.result().like(wanted[0])
    stock.served.flush_when_idle()


def test_pages_in_a_wrong_order_would_be_noticed(stock, wanted) -> None:
    stock.split(64)
    stock.link(shifted=1.0, checksum=False)
    try:
        assert any(not stock.both()[1].like(wanted[1]) for _ in range(TRIES))
    finally:
        stock.link()


def test_a_tail_that_is_joined_too_soon_would_be_noticed(start, wanted, tmp_path) -> None:
    with restoring(start, tmp_path, page=16, break_="early-join") as server:
        server.computed()
        server.split(64)
        for _ in range(TRIES):
            try:
                if not all(map(Said.like, server.both(), wanted)):
                    return
            except OSError:
                return  # the server did not survive it
        raise AssertionError("pages that have not arrived are read")


def test_a_tail_that_was_not_copied_would_be_noticed(start, wanted, tmp_path) -> None:
    with restoring(start, tmp_path, page=16, break_="no-tail-copy") as server:
        server.computed()
        server.split(64)
        assert any(not all(map(Said.like, server.both(), wanted)) for _ in range(TRIES))
        assert server.served.total(AHEAD) > 0.0
