"""One server read again and again: kinds of answers, spans, and what is not kept."""

from __future__ import annotations

import threading

from watched_pages import STOCK, Clock, server, tokenflow

from tokenflow_sgl.lab.observe import Scrape, ScrapeError, parse
from tokenflow_sgl.lab.observe.live.watched_server import MOST_READINGS, Answering, WatchedServer


def test_the_kind_of_a_server_is_that_of_its_last_answer() -> None:
    kinds = {
        Answering.ASKED: [],
        Answering.TOKENFLOW: ["", tokenflow()],
        Answering.STOCK: [STOCK],
        Answering.SILENT: [tokenflow(), ""],
    }
    for kind, pages in kinds.items():
        assert server(pages).seen().answering is kind, kind


def test_a_server_that_is_gone_says_why_and_has_no_old_figures() -> None:
    seen = server([tokenflow(), tokenflow(), ""]).seen()
    assert "no server answers there" in seen.why
    assert seen.last is seen.recent is seen.whole is None


def test_figures_look_back_over_their_spans() -> None:
    counted = [tokenflow(ended=(10.0 * number, 0.0)) for number in range(9)]
    seen = server(counted, every=10.0).seen()
    assert seen.last is not None and seen.recent is not None and seen.whole is not None
    assert [each.seconds for each in (seen.last, seen.recent, seen.whole)] == [10.0, 30.0, 80.0]
    ended = [each.gained.total("finished_streams_total") for each in (seen.last, seen.recent)]
    assert ended == [10.0, 30.0]


def test_few_readings_are_kept_however_often_it_is_read() -> None:
    seen = server([tokenflow()] * 200, every=0.5)
    assert len(seen._kept) <= MOST_READINGS
    recent = seen.seen().recent
    assert recent is not None and 25.0 <= recent.seconds <= 30.0


def test_what_is_not_shown_is_not_kept() -> None:
    watched = server([tokenflow(more="flood 1\n" * 1000 + "sglang:flood 1\n")])
    (_, page), *_ = watched._kept
    assert "flood" not in page.samples and "sglang:flood" not in page.samples
    assert page.has("reading_streams")


def test_a_server_that_hangs_is_silent_and_delays_no_end() -> None:
    asked, left = threading.Event(), threading.Event()
    clock = Clock()

    def hang(url: str) -> Scrape:
        asked.set()
        left.wait(60.0)
        raise ScrapeError("late")

    watched = WatchedServer("http://one:1", 2.0, hang, clock)
    watched.start()
    try:
        assert asked.wait(60.0)
        assert watched.seen().answering is Answering.ASKED
        clock.now += 60.0
        seen = watched.seen()
        assert seen.answering is Answering.SILENT
        assert "has not answered for 60 s" in seen.why
    finally:
        watched.stop()
        left.set()


def test_no_password_of_a_url_is_shown() -> None:
    assert WatchedServer("http://me:secret@one:1", 2.0, lambda url: parse("")).seen().name == (
        "one:1"
    )
