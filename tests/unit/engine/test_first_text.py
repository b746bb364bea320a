"""When readers got their first text: later than their first token where the text was held back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tracked import Request, running

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.costs import StepTimer
from tokenflow_sgl.engine.telemetry.prometheus import Recorder
from tokenflow_sgl.engine.telemetry.sampling import DeliveryReporter, Effort
from tokenflow_sgl.lifecycle.first_text import HELD, LOOKS
from tokenflow_sgl.lifecycle.reader_updates import set_passed_on
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.policy.predictors import LimitLengths


class Told(Recorder):
    listens = True

    def __init__(self) -> None:
        self.seen: dict[str, list[float]] = {"ttft_seconds": [], "ttfvt_seconds": []}
        self.counts: dict[str, float] = {}
        self.finished_stalled: list[bool] = []

    def count(self, name: str, amount: float, **labels: str) -> None:
        self.counts[name] = self.counts.get(name, 0.0) + amount

    def finished(self, qos_class: str, stalled: bool) -> None:
        self.finished_stalled.append(stalled)

    def observe(self, name: str, values: Any, counts: Any = None, **labels: str) -> None:
        times = np.ones(len(values)) if counts is None else counts
        self.seen.setdefault(name, []).extend(np.repeat(values, times.astype(int)).tolist())


class Served:
    """One stream that arrived at second 1 and runs."""

    def __init__(self, **given: Any) -> None:
        self.told = Told()
        self.table: StreamTable[Request] = StreamTable(LimitLengths(), capacity=2, **given)
        timer = StepTimer(lag=0)
        self.reporter = DeliveryReporter(self.table, self.told, timer, Effort())
        self.stream = running(self.table, thinking="reasoning" in given)

    def goes_on(self, *seconds: float, tokens: int = 2) -> None:
        """By so many tokens at each of these times, which are more than a second apart."""
        for now in seconds:
            self.stream.produce(tokens)
            self.reporter.iteration(now)

    def goes_on_for_long(self, since: float) -> None:
        """For so many looks that a text which is held back would be known to be."""
        self.goes_on(*(since + 2.0 * look for look in range(LOOKS + 1)))

    def leaves(self, ended: float | None) -> None:
        self.reporter.leaves(self.stream, ended)
        self.table.forget(self.stream, cut_off=ended is None)
        self.reporter.iteration(ended or 1000.0)

    @property
    def first_text(self) -> list[float]:
        return self.told.seen["ttfvt_seconds"]


@pytest.fixture
def served() -> Served:
    return Served()


def test_text_that_flows_is_that_of_the_first_token(served) -> None:
    served.goes_on(3.0, 5.0)
    assert served.first_text == [], "it may still be held back"
    served.goes_on_for_long(7.0)
    assert served.told.seen["ttft_seconds"] == [2.0]
    assert served.first_text == [2.0]
    served.leaves(30.0)
    assert served.first_text == [2.0], "once"


def test_text_held_from_the_first_token_on_is_there_when_it_goes_out(served) -> None:
    served.goes_on(3.0, 5.0, tokens=HELD // 2)
    set_passed_on(served.table, served.stream, 0, 5.1)
    served.goes_on(7.0, 9.0, 11.0)
    assert served.told.seen["ttft_seconds"] == [2.0]
    assert served.first_text == []
    set_passed_on(served.table, served.stream, None, 11.5)
    served.goes_on_for_long(13.0)
    assert served.first_text == [12.0]


def test_the_news_may_come_late(served) -> None:
    """More than the tokens that the front end waits for have come, in one second."""
    served.goes_on(3.0, tokens=HELD + 1)
    set_passed_on(served.table, served.stream, 0, 3.9)
    served.goes_on(5.0, 7.0)
    assert served.first_text == []


def test_a_front_end_that_stood_still_is_waited_for(served) -> None:
    served.goes_on(*(3.0 + look for look in range(LOOKS)), tokens=HELD + 1)
    set_passed_on(served.table, served.stream, 0, 3.0 + LOOKS - 0.1)
    served.goes_on_for_long(20.0)
    assert served.first_text == []


def test_text_held_later_changes_nothing(served) -> None:
    served.goes_on(3.0, 5.0, 7.0)
    set_passed_on(served.table, served.stream, 2, 7.5)
    served.goes_on_for_long(9.0)
    assert served.first_text == [2.0]


def test_of_a_short_answer_it_is_known_at_its_end(served) -> None:
    served.goes_on(3.0)
    served.leaves(4.0)
    assert served.first_text == [2.0]


def test_what_was_held_goes_out_at_the_end(served) -> None:
    served.goes_on(3.0, 5.0)
    set_passed_on(served.table, served.stream, 0, 5.1)
    served.goes_on(7.0)
    served.leaves(8.0)
    assert served.first_text == [7.0]


def test_what_was_held_to_the_end_is_counted(served) -> None:
    """As a tool call is, which a parser keeps until it is whole."""
    served.goes_on(3.0)
    set_passed_on(served.table, served.stream, 1, 3.1)
    served.goes_on(5.0, 7.0)
    assert served.told.counts["output_tokens_total"] == 2, "two, of which one was taken back"
    served.leaves(8.0)
    assert served.told.counts["output_tokens_total"] == 6
    assert served.told.counts["stalls_total"] == 1
    assert served.told.counts["stall_seconds_total"] == pytest.approx(8.0 - 3.0 - 0.1)
    assert served.told.finished_stalled == [True]


def test_a_client_that_leaves_before_its_text_got_none(served) -> None:
    served.goes_on(3.0, 5.0)
    set_passed_on(served.table, served.stream, 0, 5.1)
    served.goes_on(7.0)
    served.leaves(None)
    assert served.first_text == []


def test_a_client_that_leaves_early_got_its_first_text(served) -> None:
    served.goes_on(3.0)
    served.leaves(None)
    assert served.first_text == [2.0]


def test_an_answer_of_reasoning_alone_has_no_text() -> None:
    served = Served(reasoning=lambda request, _since: len(request.output_ids))
    served.goes_on(3.0, 5.0)
    set_passed_on(served.table, served.stream, 0, 5.1)
    served.goes_on(7.0)
    served.leaves(8.0)
    assert served.first_text == []


def test_no_gap_is_counted_before_the_first_text(served) -> None:
    served.goes_on(3.0)
    set_passed_on(served.table, served.stream, 0, 3.1)
    served.table.move(served.stream, Phase.PAUSED, 3.2)
    set_passed_on(served.table, served.stream, None, 9.0)
    served.reporter.iteration(9.0)
    served.reporter.iteration(11.0)
    assert max(served.told.seen["tbt_seconds"]) == 0.0
