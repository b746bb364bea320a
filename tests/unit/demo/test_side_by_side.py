"""The live view: two servers at one virtual second, on a terminal and in a log."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tokenflow_sgl.lab.demo.side_by_side import readers, side_by_side
from tokenflow_sgl.lab.replay.live import Snapshot

NOW = Snapshot(
    time_s=4.0,
    total=60,
    sent=60,
    finished=7,
    failed=0,
    running=53,
    waiting=31,
    tokens_per_s=812.0,
    ttft_p50_s=1.0,
    ttft_p99_s=2.0,
    stalled=2,
)


def at(time_s: float, **changes: float) -> Snapshot:
    return replace(NOW, time_s=time_s, **changes)


def test_every_reader_that_asked_is_in_one_state() -> None:
    assert readers(NOW) == {"waiting": 31, "reading": 20, "stalled": 2, "finished": 7}


def test_both_are_shown_at_the_second_that_both_have_reached() -> None:
    with side_by_side(Console(file=io.StringIO()), ("a", "b")) as view:
        view.observe("a", at(1.0), 0.2)
        assert view.now_s() == 0.0 and view.at("b", 5.0) is None
        view.observe("a", at(6.0), 0.4)
        view.observe("b", at(3.0), 0.4)
        assert view.now_s() == 3.0
        assert view.at("a", 3.0) == at(1.0)


def test_a_server_that_is_done_does_not_hold_the_other_back() -> None:
    with side_by_side(Console(file=io.StringIO()), ("a", "b")) as view:
        done = at(5.0, finished=60, running=0, waiting=0, stalled=0)
        view.observe("a", done, 1.0)
        view.observe("b", at(9.0), 1.0)
        assert view.now_s() == 9.0
        assert view.at("a", 9.0) == done
        view.observe("b", replace(done, time_s=11.0), 1.0)
        assert view.now_s() == 11.0


@pytest.mark.parametrize("terminal", [True, False])
def test_both_servers_counts_are_shown(terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=160)
    with side_by_side(console, ("stock", "tokenflow")) as view:
        view.observe("stock", NOW, 11.0)
        view.observe("tokenflow", at(4.0, waiting=3), 21.0)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for figure in ("31 waiting", "20 reading", "2 stalled", "7 finished", "3 waiting", "812"):
        assert figure in text, text


def test_a_log_gets_a_line_every_ten_seconds() -> None:
    console = Console(file=io.StringIO(), width=160)
    with side_by_side(console, ("a", "b")) as view:
        for number in range(100):
            for name in ("a", "b"):
                view.observe(name, at(number / 10), number / 4)
    assert len(console.file.getvalue().splitlines()) == 2  # type: ignore[attr-defined]
