"""A prefix that is computed from its head and fetched from its tail gives stock SGLang's tokens.

Attention does not care in which order keys lie, so a request that reads pages in a wrong order may
still say the right thing. One that goes another way within the tail does not: each split is asked
both.
"""

from __future__ import annotations

import concurrent.futures
import http.client
import random
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from servers.restoring import AHEAD, NEW, SLOW, SUFFIX, Restoring, Said, restoring
from servers.tuned import CHECK_RANKS

from tokenflow_sgl_emulator.models import make_tiny_model

pytestmark = pytest.mark.engine

WRITE_BACK = (
    *("--hicache-write-policy", "write_back", "--max-total-tokens", "512"),
    # SGLang has nowhere to evict to while a busy machine still writes the host's memory to storage.
    *("--hicache-ratio", "8"),
)


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
        pytest.param(1, ("--disable-overlap-schedule", *WRITE_BACK), marks=pytest.mark.slow),
        pytest.param(16, ("--scheduler", "tokenflow", *WRITE_BACK), marks=pytest.mark.slow),
        (64, ("--scheduler", "tokenflow")),
        pytest.param(
            16,
            ("--scheduler", "tokenflow", "--tp-size", "2", CHECK_RANKS),
            marks=pytest.mark.slow,
        ),
    ],
    ids=(
        "page 1, write-back, no overlap",
        "page 16, write-back, tokenflow",
        "page 64, tokenflow",
        "two ranks",
    ),
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


@pytest.mark.slow
def test_another_model_under_stock_with_large_pages(start, tmp_path) -> None:
    model = make_tiny_model(tmp_path / "llama", arch="llama")
    with restoring(start, tmp_path, page=64, model=model) as server:
        server.check_splits((64, 192, 320), server.computed())
        server.served.assert_clean()
        assert server.served.total(AHEAD) > 0.0


@pytest.mark.slow
def test_an_adapter_gets_its_own_prefixes(start, models, wanted, tmp_path) -> None:
    """The same prompt has one prefix in the storage for each adapter, and one without."""
    flags = ("--scheduler", "tokenflow", "--lora-paths", f"tiny={models / 'lora'}")
    with restoring(start, tmp_path, *flags, page=16) as server:
        assert all(map(Said.like, server.computed(), wanted))
        adapted = server.asking(lora_path="tiny")
        theirs = adapted.computed()
        assert not any(map(Said.like, theirs, wanted))
        for head in (64, 192, 320):
            server.check_splits((head,), wanted)
            adapted.check_splits((head,), theirs)
        server.served.assert_clean()


def test_the_head_goes_on_where_the_host_has_the_beginning(stock, wanted) -> None:
    """Some of it on the host, some on the device, the rest in the storage."""
    stock.split(128)
    beginning = [*stock._prompt[:96], 5, 6, 7]

    def begun_behind_it() -> str:
        stock.ask(beginning)
        said = stock.ask(stock._prompt)
        assert said.like(wanted[0])
        assert stock.ask(stock._fork).like(wanted[1])
        stock.served.flush_when_idle()
        begun = said.stored == stock.end - 128
        return "" if begun else f"no head was begun behind a cached prefix: {said.stored}"

    stock.try_until_right(begun_behind_it)


def test_what_two_prompts_share_is_fetched_once(stock, wanted) -> None:
    """Also where the first of the two is aborted."""
    stock.split(0)
    own = (SUFFIX - 1) // 16 * 16  # what only the fork has

    def fetched_once() -> str:
        before = len(stock.served.log())
        calls = [lambda ids=ids: stock.ask(ids) for ids in (stock._prompt, stock._fork)]
        said = stock.served.together(calls)
        assert all(map(Said.like, said, wanted))
        stock.served.flush_when_idle()
        fetched = re.findall(r"prefetch success .* completed=(\d+)", stock.served.log()[before:])
        once = sum(map(int, fetched)) == stock.end + own
        return "" if once else f"each fetches all of its prefix: {fetched}"

    stock.try_until_right(fetched_once)
    calls = [lambda: stock.served.leave(stock._prompt, 0.4), lambda: stock.ask(stock._fork)]
    assert stock.served.together(calls)[1].like(wanted[1])
    stock.served.flush_when_idle()
    stock.served.assert_clean()


@pytest.mark.parametrize(
    "flags",
    [(), pytest.param(("--tp-size", "2"), marks=pytest.mark.slow)],
    ids=("one", "two ranks"),
)
def test_the_link_brings_first_what_is_admitted_first(start, wanted, tmp_path, flags) -> None:
    """Of two that come one after the other; by priority the second one overtakes the first."""
    gbps = SLOW / 5 if flags else SLOW
    with restoring(
        start, tmp_path, "--enable-priority-scheduling", *flags, page=16, gbps=gbps
    ) as server:
        server.computed()
        server.split(64)
        server.both()  # the link and the steps are known then
        server.split(0)
        ends: list[int] = []

        def ask(ids: list[int], number: int, priority: int) -> Said:
            time.sleep(0.3 * number)  # the first one is in its fetch
            said = server.asking(priority=priority).ask(ids)
            ends.append(number)
            return said

        def order(*priorities: int) -> list[int]:
            ends.clear()
            prompts = server._prompt, [7, *server._prompt[1:]]
            calls = [
                lambda each=each: ask(*each)
                for each in zip(prompts, range(2), priorities, strict=True)
            ]
            said = server.served.together(calls)
            assert said[0].like(wanted[0])
            assert said[1].like(other)
            server.served.flush_when_idle()
            assert server.ask(server._fork).like(wanted[1])
            server.served.flush_when_idle()
            return list(ends)

        other = server.ask([7, *server._prompt[1:]])
        server.served.flush_when_idle()
        server.try_until_right(lambda: "" if order(0, 9) == [1, 0] else "it overtakes nothing")
        server.try_until_right(lambda: "" if order(0, 0) == [0, 1] else "it has overtaken")
        server.served.assert_clean()


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
    stock.split(64)

    def failures() -> float:
        return stock.served.total("tokenflow:restore_fetch_failures_total")

    def asked() -> str:
        before = failures()
        prompt, fork = stock.both()
        assert prompt.like(wanted[0])
        assert fork.like(wanted[1])
        failed = failures() > before
        assert fails or not failed
        # A query that a busy machine answers late is given up, and then nothing is fetched.
        return "" if failed == fails else "no fetch has failed"

    stock.try_until_right(asked, **fault)


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


def test_two_ranks_have_ended_a_fetch_before_a_flush(start, wanted, tmp_path) -> None:
    """SGLang ends the server where one rank's threads stop that the other's wait for."""
    flags = ("--tp-size", "2")
    with restoring(start, tmp_path, *flags, page=16, break_="late-rank") as server:
        server.computed()
        server.split(0)
        for seconds in (1.0, 2.0):
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                asked = pool.submit(server.ask, server._prompt)
                time.sleep(seconds)  # in its fetch
                assert server.served.post("/pause_generation", {"mode": "retract"}).status == 200
                server.served.flush_when_idle()
                assert server.served.post("/continue_generation", {}).status == 200
                assert asked.result().like(wanted[0])
        server.served.assert_clean()


def test_pages_in_a_wrong_order_would_be_noticed(stock, wanted) -> None:
    stock.split(64)

    def noticed() -> str:
        return "" if not stock.both()[1].like(wanted[1]) else "a wrong order changes nothing"

    stock.try_until_right(noticed, shifted=1.0, checksum=False)


@pytest.mark.slow
def test_a_tail_that_is_joined_too_soon_would_be_noticed(start, wanted, tmp_path) -> None:
    with restoring(start, tmp_path, page=16, break_="early-join") as server:
        server.computed()
        server.split(64)

        def noticed() -> str:
            try:
                said = server.both()
            except (AssertionError, OSError, http.client.HTTPException):
                return ""  # the server did not survive it, or never becomes idle
            same = all(map(Said.like, said, wanted))
            return "pages that have not arrived are not read" if same else ""

        server.try_until_right(noticed)


def test_a_tail_that_was_not_copied_would_be_noticed(start, wanted, tmp_path) -> None:
    with restoring(start, tmp_path, page=16, break_="no-tail-copy") as server:
        server.computed()
        server.split(64)

        def noticed() -> str:
            if all(map(Said.like, server.both(), wanted)):
                return "a page that was not copied is not read"
            return "" if server.served.total(AHEAD) > 0.0 else "none was copied beforehand"

        server.try_until_right(noticed)
