"""One threshold of perception: from which length on a stall is counted, wherever one is."""

from __future__ import annotations

import importlib
import json
import re

import numpy as np
import pytest
from rich.console import Console
from tracked import track
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.contract import Phase
from tokenflow_sgl.engine.telemetry.tally import Tally
from tokenflow_sgl.lab.report import Options, ReportError, figures, markdown_table
from tokenflow_sgl.lab.report.catalogue import BY_KEY
from tokenflow_sgl.lab.runs import write_run
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.metrics import METRICS
from tokenflow_sgl.policy.predictors import LimitLengths
from tokenflow_sgl.qos import NOTICEABLE_STALL, ReaderBank, evaluate_stream

RATE = 10.0
# A reader of 10 tokens/s: 20 tokens 50 ms late each, which it does not notice; one 0.5 s late.
GAPS = [0.1, *[0.15] * 20, 0.6, 0.1]
TIMES = (1.0 + np.cumsum(GAPS)).tolist()
SECONDS, NOTICED, ALL = 20 * 0.05 + 0.5, 1, 21


@pytest.fixture
def run(synthetic):
    """Two requests: one as above, one whose reader is 20 ms late each time, a second in all."""
    slow = (1.0 + np.arange(51) * 0.12).tolist()
    rows = [
        synthetic.request_row(0, TIMES, scheduled_s=0.5, rate=RATE),
        synthetic.request_row(1, slow, scheduled_s=0.5, rate=RATE),
    ]
    return synthetic.run_of(rows, [TIMES, slow])


def test_a_stream_counts_what_is_noticed_and_sums_all() -> None:
    stream = evaluate_stream(TIMES, rate=RATE, arrival=0.0)
    assert stream.stall_seconds == pytest.approx(SECONDS)
    assert stream.stall_count == NOTICED
    assert evaluate_stream(TIMES, rate=RATE, arrival=0.0, stall_threshold=0.0).stall_count == ALL
    never = evaluate_stream(TIMES, rate=RATE, arrival=0.0, stall_threshold=1.0)
    assert (never.stall_count, never.stalled) == (0, False)
    assert never.stall_seconds == pytest.approx(SECONDS)


def test_a_stall_of_the_threshold_itself_is_not_longer_than_it() -> None:
    # 0.2 s for a token of 0.1 s, at every origin: floats are off by a little in both directions.
    for origin in (0.0, 1.7e9):
        times = origin + np.arange(100) * (0.1 + NOTICEABLE_STALL)
        assert evaluate_stream(times, rate=RATE, arrival=origin).stall_count == 0


def test_the_live_readers_count_the_same(run) -> None:
    bank = ReaderBank()
    bank.open(0, rate=RATE, arrival=0.0, expected_tokens=len(TIMES))
    for moment in TIMES:
        bank.deliver(np.array([0]), np.array([1]), moment)
    assert bank.stall_seconds[0] == pytest.approx(SECONDS)
    assert bank.stall_count[0] == NOTICED


def test_the_servers_metrics_count_the_same() -> None:
    class Request:
        output_ids: list[int]

        @property
        def send_token_offset(self) -> int:
            return len(self.output_ids)

    told: dict[str, float] = {}

    class Told:
        def count(self, name, amount, **labels):
            told[name] = told.get(name, 0.0) + amount

        def observe(self, *_args, **_labels):
            pass

    table: StreamTable[Request] = StreamTable(LimitLengths())
    request = Request()
    request.output_ids = []
    track(table, request, prompt=5, limit=100, rate=RATE, qos_class="a", arrival=0.5, now=0.5)
    table.move(request, Phase.RUNNING, 0.5)
    tally = Tally(table, Told())
    for moment in TIMES:
        request.output_ids.append(7)
        tally.add(table.collect(moment), moment)
    tally.hand_on()
    assert told["stalls_total"] == NOTICED
    assert told["stall_seconds_total"] == pytest.approx(SECONDS), "however short, as in Eq. 2"


@pytest.mark.parametrize("name", ["stalls_total", "stalled_streams", "finished_streams_total"])
def test_metrics_say_from_when_on_a_stall_counts(name) -> None:
    assert f"longer than {NOTICEABLE_STALL:g} s" in METRICS[name].help
    page = CliRunner().invoke(app, ["docs", "metrics"]).output
    assert "of any length" in METRICS["stall_seconds_total"].help
    assert "limit of what a person perceives as instantaneous" in page


def test_a_report_counts_and_says_so(run, tmp_path) -> None:
    readers = figures(run).readers
    assert readers.stall_count == NOTICED
    assert readers.stalled_share == 0.5
    assert readers.stall_seconds == pytest.approx(SECONDS + 50 * 0.02)
    everything = figures(run, Options(stall_threshold_s=0.0)).readers
    assert everything.stall_count == ALL + 50
    assert everything.stalled_share == 1.0
    assert everything.stall_seconds == readers.stall_seconds


@pytest.mark.long
@pytest.mark.parametrize("threshold", [0.1, 0.25])
def test_every_view_of_a_report_names_the_threshold(run, threshold) -> None:
    from tokenflow_sgl.lab.report import compare
    from tokenflow_sgl.lab.report.export import run_object
    from tokenflow_sgl.lab.report.page import page
    from tokenflow_sgl.lab.report.terminal import comparison_view, run_view

    judged = figures(run, Options(stall_threshold_s=threshold))
    both = compare(judged, [judged])
    texts = [markdown_table(judged), markdown_table(both), page(judged), page(both)]
    console = Console(width=200)
    for view in (run_view(judged), comparison_view(both, everything=True)):
        with console.capture() as captured:
            console.print(view)
        texts.append(captured.get())
    for text in texts:
        text = re.sub(r"\\|&gt;", lambda found: ">" if found[0] == "&gt;" else "", text)
        assert f"stalls > {threshold:g} s, number" in text
        assert f"readers with a stall > {threshold:g} s" in text
        assert "stalled time, all readers" in text
        assert "{" not in text[text.index("stalls > ") :][:80]
    assert f'<th class="">stalls &gt; {threshold:g} s</th>' in page(judged)
    assert "counted from" in page(judged)
    assert run_object(judged)["tokenflow"]["options"]["stall_threshold_s"] == threshold


def test_the_threshold_is_an_option_of_the_report(run, tmp_path) -> None:
    write_run(tmp_path / "run", run)

    def counted(*options: str) -> int:
        done = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--json", *options])
        assert done.exit_code == 0, done.output
        found: int = json.loads(done.stdout)["tokenflow"]["stall_count"]
        return found

    assert counted() == NOTICED
    assert counted("--stall-threshold", "0.04") == ALL
    assert counted("--stall-threshold", "2") == 0


@pytest.mark.parametrize("value", [-0.1, float("nan")])
def test_a_threshold_that_is_none_is_refused(value) -> None:
    with pytest.raises(ReportError, match="stall_threshold_s must be a finite number >= 0"):
        Options(stall_threshold_s=value)


def test_the_replays_live_line_and_the_demo_use_the_same() -> None:
    live = importlib.import_module("tokenflow_sgl.lab.replay.live")
    compare = importlib.import_module("tokenflow_sgl.lab.demo.result")
    snapshot = live.Snapshot(1.0, 1, 1, 0, 0, 1, 0, 5.0, 0.1, 0.1, 1)
    assert f"1 stalled for over {NOTICEABLE_STALL:g} s now" in live._line(snapshot)
    titles = [BY_KEY[key].title(Options()) for key in compare.ROWS]
    assert f"readers with a stall > {NOTICEABLE_STALL:g} s" in titles
