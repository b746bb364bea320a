"""What is said of one server: verdicts in words, bars, and figures that make no sense."""

from __future__ import annotations

import math

import pytest
from busy_server import page, work
from watched_pages import STOCK, buckets, server, tokenflow

from tokenflow_sgl.lab.observe.live.card import MOST_CLASSES, Card, Tone, card


def of(*pages) -> Card:
    return card(server(pages).seen())


@pytest.mark.parametrize(
    ("reading", "stalled", "waiting", "said", "tone"),
    [
        (40, 12, 3, "12 of 40 readers stall", Tone.BAD),
        (40, 1, 0, "1 of 40 readers stalls", Tone.BAD),
        (40, 0, 1, "No reader stalls; 1 stream waits for a first token", Tone.WAIT),
        (40, 0, 0, "No reader waits (40 read)", Tone.GOOD),
        (0, 0, 0, "No reader is here", Tone.NONE),
    ],
)
def test_the_verdict_comes_first(reading, stalled, waiting, said, tone) -> None:
    verdict = of(tokenflow(reading, stalled, waiting)).verdict
    assert (verdict.text, verdict.tone) == (said, tone)


def test_a_busy_server_has_bars_classes_and_figures(recorder) -> None:
    before = page()
    work(recorder)
    seen = of(before, page())
    unread = {each.label: each.text for each in seen.unread}
    assert unread["nothing"].startswith("17%, "), "one of six samples"
    assert math.fsum(each.part for each in seen.unread) == pytest.approx(1.0)
    assert seen.classes == [("reading", "0.2 s", "2.2 s", "115.0 s")]
    figures = dict(seen.figures)
    assert figures["streams"] == "12 running, 3 paused, 1 waiting"
    assert figures["tokens per second"] == "60, 48 of them effective"
    assert "closer to a stall" in figures["paused, exchange"]
    assert seen.note.startswith("Scheduler working-set: the policy orders")


def test_stock_sglang_says_what_it_does_not_know() -> None:
    seen = of(STOCK)
    assert "does not know its readers" in seen.note
    assert dict(seen.figures)["requests"] == "7 running, 3 queued"
    (memory,) = seen.memory
    assert memory.text == "97%"


def test_a_server_that_is_down_says_the_next_step() -> None:
    seen = of("")
    assert seen.verdict.text == "Does not answer"
    assert "Next: see whether it is up" in seen.note


@pytest.mark.parametrize("bad", ["NaN", "+Inf", "-Inf", "1e308"])
def test_no_figure_stops_the_page(bad) -> None:
    more = buckets("tokenflow:buffer_seconds", {"0.0": 1, "1.0": bad, "+Inf": bad})
    more += f"tokenflow:headroom_tokens {bad}\nsglang:token_usage {bad}\n"
    seen = of(tokenflow(), tokenflow(reading=bad, stalled=bad, more=more))
    assert seen.verdict.text


def test_a_bucket_without_a_number_is_told() -> None:
    seen = of(tokenflow(more=buckets("tokenflow:tbt_seconds", {"many": 3, "+Inf": 4})))
    assert seen.verdict.text == "Cannot be understood"


def test_many_classes_and_long_names_have_an_end() -> None:
    name = "buffer_percentile_seconds"
    more = "".join(
        f'tokenflow:{name}{{qos_class="{number}{"x" * 5000}",percentile="{part}"}} {number}\n'
        for number in range(500)
        for part in (10, 50, 90)
    )
    more += "".join(f'tokenflow:preemptions_total{{cause="c{each}"}} 1\n' for each in range(500))
    seen = of(tokenflow(), tokenflow(more=more))
    assert len(seen.classes) == MOST_CLASSES + 1
    assert seen.classes[-1][0] == f"{500 - MOST_CLASSES} more"
    assert max(len(each[0]) for each in seen.classes) <= 60
    assert len(seen.figures) < 20
