import io
import math

import pytest
from rich.console import Console

from tokenflow_sgl.lab.replay.live import Snapshot, live_view

NOW = Snapshot(
    time_s=12.0,
    total=2000,
    sent=900,
    finished=400,
    failed=3,
    running=497,
    waiting=11,
    tokens_per_s=12345.6,
    ttft_p50_s=0.123,
    ttft_p99_s=4.567,
    stalled=17,
)
FIGURES = (
    "900 sent",
    "400 finished",
    "3 failed",
    "497 running",
    "11 without a token",
    "12,346 tokens/s",
    "TTFT P50 0.12 s, P99 4.57 s",
    "17 stalled for over 0.1 s now",
)


def shown(terminal, *snapshots):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=150)
    with live_view(console) as view:
        for snapshot, wall_s in snapshots:
            view.show(snapshot, wall_s)
    return console.file.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_all_figures_are_shown(terminal):
    text = shown(terminal, (NOW, 0.0), (NOW, 12.0))
    for figure in FIGURES:
        assert figure in text
    assert "2,000" in text


def test_a_log_gets_a_line_every_ten_seconds():
    half_seconds = [(NOW, number / 2) for number in range(61)]
    assert len(shown(False, *half_seconds).splitlines()) == 3


def test_no_ttft_before_the_first_token():
    import dataclasses

    early = dataclasses.replace(NOW, ttft_p50_s=math.nan, ttft_p99_s=math.nan)
    text = shown(False, (early, 0.0), (early, 12.0))
    assert "TTFT" not in text
    assert "900 sent" in text
