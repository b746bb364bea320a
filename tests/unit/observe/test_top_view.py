"""The picture of `tokenflow top`, made of what the server's own recorder writes."""

from __future__ import annotations

import io
from collections import deque

import numpy as np
import rich.screen
from busy_server import page, work
from prometheus_client import Gauge
from rich.console import Console

from tokenflow_sgl.contract import Mode
from tokenflow_sgl.engine.telemetry.prometheus import Levels
from tokenflow_sgl.lab.observe import parse
from tokenflow_sgl.lab.observe.look import LEVELS, MODES, Look, by_level
from tokenflow_sgl.lab.observe.top_view import WIDTH, Screen, _curve
from tokenflow_sgl.metrics import METRICS


def shown(look: Look, width: int = 130) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(Screen("http://server:30000", look))
    return console.export_text()


def test_a_busy_server(recorder) -> None:
    before = page()
    work(recorder)
    Gauge("sglang:token_usage", "Used.").set(0.9)
    text = shown(Look(page(), page().since(before), 2.0, deque([(100.0, 80.0), (300.0, 240.0)])))
    for wanted in (
        "streams: 12 running, 3 paused, 1 waiting, 1 stalled",
        "scheduler: working-set, the policy orders admission and preemption",
        "readers take 240 tokens/s, the engine made 300 recently",
        "2.00 stalls/s for longer than 0.1 s",
        "0.50 readers stalled on average",
        "0.5 exchange",
        "0.5 host",
        "64 tokens, 0 back",
        "90%",
    ):
        assert wanted in text, text
    assert "tokens/s 300" in " ".join(text.split())


def test_a_class_without_streams_has_no_percentile() -> None:
    page = 'tokenflow:buffer_percentile_seconds{qos_class="chat",percentile="50"} NaN\n'
    seen = parse(page)
    (line,) = (
        line for line in shown(Look(seen, seen, 2.0, deque())).splitlines() if "chat" in line
    )
    assert "0.0 s" not in line and "-" in line


def test_shares_and_percentiles_do_not_add_up_over_ranks() -> None:
    seen = parse(
        "".join(
            f'sglang:token_usage{{dp_rank="{rank}"}} {used}\n'
            f'tokenflow:buffer_percentile_seconds{{dp_rank="{rank}",qos_class="chat",'
            f'percentile="50"}} {seconds}\n'
            for rank, used, seconds in ((0, 0.5, 4.0), (1, 0.7, 3.0))
        )
    )
    text = shown(Look(seen, seen.since(seen), 2.0, deque()))
    assert "70%" in text and "120%" not in text
    assert "3.0 s" in text, "the readers who are nearest to a stall"
    assert "4.0 s" not in text and "7.0 s" not in text


def test_of_ranks_the_busiest_loop_is_shown() -> None:
    """Each has one of its own: two that take 40 % and 30 % of their time do not take 70 %."""
    before, after = (
        parse(
            "# TYPE tokenflow:scheduling_seconds counter\n"
            + "".join(
                f'tokenflow:scheduling_seconds_total{{dp_rank="{rank}"}} {value}\n'
                for rank, value in enumerate(values)
            )
        )
        for values in ((1.0, 2.0), (1.8, 2.6))
    )
    text = shown(Look(after, after.since(before), 2.0, deque()))
    assert "40.0%" in text and "70.0%" not in text


def test_panels_stand_side_by_side_in_120_columns(recorder) -> None:
    before = page()
    work(recorder)
    lines = shown(Look(page(), page().since(before), 2.0, deque()), width=120).splitlines()
    assert any("Unread output" in line and "Throughput" in line for line in lines)
    assert any("KV memory and link" in line for line in lines)


def test_a_terminal_of_80_by_24_shows_everything(recorder) -> None:
    """As the screen does it, which cuts what is below its last line."""
    before = page()
    work(recorder)
    for name in ("listening", "agent", "unsaid"):
        recorder.buffers(name, np.array([12.0, 345.0]), stalled=0)
    Gauge("sglang:token_usage", "Used.").set(0.97)
    history = deque([(1e5 * n, 1e5 * n) for n in range(60)])
    url = "http://a-server.with-a-long-name.example:30000"
    look = Look(page(), page().since(before), 2.0, history)
    console = Console(width=80, height=24, file=io.StringIO(), force_terminal=True)
    picture = rich.screen.Screen(Screen(url, look, console.height))
    lines = ["".join(part.text for part in line) for line in console.render_lines(picture)]
    assert len(lines) == 24 and all(len(line) == 80 for line in lines)
    text = "\n".join(lines)
    for wanted in (
        *("streams: 12 running", "scheduler: working-set", url),
        *("nothing", "to 89 s", "reading", "2 more", "stalls/s for longer", "readers stalled on"),
        *("tokens/s", "effective", "first token", "between tokens", "readers take 240 tokens/s"),
        *("preempted per second", "resumed per second", "policy pass", "of the loop's time"),
        *("policy failures", "KV memory and link", "97%", "to the host", "64 tokens, 0 back"),
    ):
        assert wanted in text, text
    assert "…" not in text
    closed = [line for line in lines if line.startswith("╰")]
    assert len(closed) == 2, text  # the lowest panel's border is there, too


def test_levels_are_the_samples_of_their_bounds(recorder) -> None:
    before = page()
    work(recorder)
    # 0.0 | 0.4 | 2.0 2.5 | - | - | 30.0 | 200.0
    assert by_level(page().since(before)) == [1, 1, 2, 0, 0, 1, 1]
    assert set(LEVELS[:-1]) <= set(METRICS["buffer_seconds"].buckets)


def test_a_server_without_anything_yet(recorder) -> None:
    seen = page()
    text = shown(Look(seen, seen.since(seen), 2.0, deque()))
    assert "streams: 0 running, 0 paused, 0 waiting, 0 stalled" in text


def test_a_policy_that_rests_is_not_a_server_that_does(recorder) -> None:
    recorder.policy_pass(Mode.IDLE, 0.0)
    recorder.levels(Levels(running=30))
    seen = page()
    first, second, third = shown(Look(seen, seen.since(seen), 2.0, deque())).splitlines()[:3]
    assert first.strip() == "http://server:30000"
    assert second.strip() == "streams: 30 running, 0 paused, 0 waiting, 0 stalled"
    assert third.strip() == "scheduler: idle, all streams fit, and SGLang's own policy runs"


def test_every_mode_is_explained() -> None:
    assert set(MODES) == {mode.value for mode in Mode}


def test_a_server_without_anything_shows_none(recorder) -> None:
    seen = page()
    text = shown(Look(seen, seen.since(seen), 2.0, deque()))
    assert "none" in text


def test_curves_have_the_height_of_their_values() -> None:
    assert _curve([]) == _curve([0.0, 0.0]) == ""
    assert _curve([0.0, 5.0, 10.0]) == " ▄█"
    assert len(_curve([1.0] * 100)) == WIDTH
