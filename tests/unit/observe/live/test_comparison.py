"""Two servers side by side: what is better, what is chance, and what cannot be told."""

from __future__ import annotations

import pytest
from watched_pages import STOCK, buckets, server, tokenflow

from tokenflow_sgl.lab.observe.live.card import Tone
from tokenflow_sgl.lab.observe.live.comparison import differences

SLOW = {"0.1": 0, "1.0": 10, "10.0": 1000, "+Inf": 1000}
FAST = {"0.1": 990, "1.0": 1000, "10.0": 1000, "+Inf": 1000}


def told(base: str, canary: str) -> list[tuple[str, Tone]]:
    """Of two servers that began with nothing, and then have these pages."""
    seen = [
        server([STOCK if page.startswith("\nsglang") else tokenflow(), page], name).seen()
        for name, page in (("http://a:1", base), ("http://b:1", canary))
    ]
    return [(each.text, each.tone) for each in differences(*seen)]


def test_a_better_canary() -> None:
    stalls, first, *_ = told(
        tokenflow(ended=(70, 30), first_token=SLOW), tokenflow(ended=(97, 3), first_token=FAST)
    )
    assert stalls == ("Readers that stalled: 3% on b:1, 30% on a:1: fewer", Tone.GOOD)
    assert first == (
        "First token, P99: 100 ms on b:1, 9.91 s on a:1: 99% shorter",
        Tone.GOOD,
    )


def test_a_worse_one() -> None:
    stalls, first, *_ = told(
        tokenflow(ended=(97, 3), first_token=FAST), tokenflow(ended=(70, 30), first_token=SLOW)
    )
    assert stalls[1] is first[1] is Tone.BAD
    assert stalls[0].endswith(": more")
    assert first[0].endswith("99.09 times as long")


def test_a_longer_gap_between_tokens_need_not_harm() -> None:
    pages = [
        tokenflow(more=buckets("sglang:inter_token_latency_seconds", each)) for each in (FAST, SLOW)
    ]
    (gaps,) = [each for each in told(*pages) if each[0].startswith("Between tokens")]
    assert gaps[0].endswith("times as long. Pauses count, also those that no reader notices")
    assert gaps[1] is Tone.WAIT


def test_chance_and_small_numbers_are_no_difference() -> None:
    (chance, tone), (first, _), *_ = told(tokenflow(ended=(94, 6)), tokenflow(ended=(96, 4)))
    assert chance.endswith("no more than chance") and tone is Tone.NONE
    assert first == "First token: too few observations to tell"
    (few, _), *_ = told(tokenflow(ended=(5, 0)), tokenflow(ended=(3, 3)))
    assert few == "Stalls: too few streams have ended to tell (6 and 5)"


def test_stock_sglang_is_compared_by_what_it_measures() -> None:
    stock = STOCK + buckets("sglang:time_to_first_token_seconds", SLOW)
    stalls, first, *_ = told(stock, tokenflow(first_token=FAST))
    assert stalls == ("Stalls: a:1 does not know its readers", Tone.NONE)
    assert first[1] is Tone.GOOD


@pytest.mark.parametrize(("tokens", "alike"), [(900, True), (100, False)])
def test_unlike_loads_are_said(tokens, alike) -> None:
    work = 'sglang:realtime_tokens_total{{mode="decode"}} {}\n'
    said = told(
        tokenflow(more=work.format(1000)),
        tokenflow(more=work.format(tokens)),
    )[-1]
    assert said[0].startswith(f"Work: {tokens / 10:.0f} tokens per second on b:1, 100 on a:1")
    assert (said[1] is Tone.NONE) is alike


def test_one_that_is_down_cannot_be_compared() -> None:
    seen = server([""]).seen(), server([tokenflow()]).seen()
    (only,) = differences(*seen)
    assert only.text == "One of the two does not answer, so nothing can be compared"
