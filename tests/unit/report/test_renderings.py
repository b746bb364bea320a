"""Terminal, Markdown and JSON."""

from __future__ import annotations

import io
import json
import math
import re

import pytest
from rich.console import Console

from tokenflow_sgl.lab.report import ReportError, compare, figures, markdown_table
from tokenflow_sgl.lab.report.export import comparison_object, run_object, to_json
from tokenflow_sgl.lab.report.overview import lengths_note
from tokenflow_sgl.lab.report.page import page
from tokenflow_sgl.lab.report.terminal import comparison_view, run_view
from tokenflow_sgl.lab.report.text import interval, number, plain


def printed(view, width=120):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(view)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def judged(pair):
    return [figures(run) for run in pair]


def test_terminal_shows_every_section(judged):
    text = printed(run_view(judged[0]))
    for word in ("Latency", "Throughput", "Reader", "SLO", "Validity", "P99.9", "Andes QoE"):
        assert word in text
    assert "Do not trust" not in text


def test_terminal_compares(judged):
    text = printed(comparison_view(compare(judged[0], judged[1:])))
    assert "tokenflow against stock" in text
    line = next(line for line in text.splitlines() if "TTFT, mean" in line)
    assert "better" in line and "x (" in line
    folded = re.search(r"No clear difference in (\d+) of (\d+) figures; --all shows them", text)
    assert "no clear difference" not in text
    whole = printed(comparison_view(compare(judged[0], judged[1:]), everything=True))
    assert whole.count("no clear difference") == int(folded[1]) > 0
    assert len(re.findall("better|worse|no clear", whole)) == int(folded[2])


@pytest.mark.parametrize(
    ("info", "mark"),
    [({"invalid": ("The client was late.",)}, "INVALID"), ({"interrupted": True}, "INTERRUPTED")],
)
def test_runs_that_do_not_count_are_marked_everywhere(synthetic, judged, info, mark):
    bad = figures(synthetic.make_run("tokenflow", name="broken", **info))
    comparison = compare(judged[0], [bad])
    alone, table = printed(run_view(bad)), printed(comparison_view(comparison))
    for text in (alone, table):
        assert "Do not trust these figures" in text
        assert f"broken [{mark}]" in text
    assert f"NO: {mark}" in alone
    assert f"broken \\[{mark}\\]" in markdown_table(comparison).splitlines()[0]
    assert markdown_table(bad).count(mark) >= 1
    for result in (run_object(bad), comparison_object(comparison)["runs"][1]):
        assert result["run"]["valid"] is False
        assert result["run"]["warnings"]
    assert comparison_object(comparison)["comparisons"][0]["valid"] is False


def test_valid_runs_are_not_marked(judged):
    comparison = compare(judged[0], judged[1:])
    for text in (printed(comparison_view(comparison)), markdown_table(comparison)):
        assert "INVALID" not in text and "INTERRUPTED" not in text


def test_what_servers_knew_of_lengths_is_said(synthetic):
    def run(name, **options):
        return figures(synthetic.make_run(name=name, readers=20, options=options))

    old, known, unknown = run("old"), run("a", known_lengths=True), run("b", known_lengths=False)
    assert lengths_note([old, old]) is None
    assert "its limit was its length" in lengths_note([known, old])
    assert "did not know when an answer would end" in lengths_note([unknown, unknown])
    mixed = compare(old, [unknown])
    said = "old knew when each answer would end, b only saw the limits of clients."
    assert said in lengths_note([old, unknown])
    for text in (printed(comparison_view(mixed)), markdown_table(mixed), page(mixed)):
        assert said in " ".join(text.split())
    assert "unknown to the server" in printed(run_view(unknown))
    assert "known to the server" not in printed(run_view(old))


def test_failures_are_listed(one_request):
    text = printed(run_view(figures(one_request([], error="HTTP 503", ended_s=1.0))))
    assert "failed: HTTP 503" in text


def test_json_has_the_fields_of_bench_serving_and_ours(judged):
    result = json.loads(to_json(run_object(judged[1])))
    assert result["completed"] == 60
    assert result["mean_ttft_ms"] == pytest.approx(judged[1].bench.mean_ttft_ms)
    ours = result["tokenflow"]
    assert ours["ttft_s"]["p999"] == judged[1].latency.ttft.p999
    assert ours["effective_throughput"] == judged[1].throughput.effective
    assert ours["slo"]["goodput"] == judged[1].slo.goodput
    assert ours["andes_qoe"]["p10"] == judged[1].readers.andes_qoe_p10
    assert ours["options"]["tbt_rule"] == "p99"
    assert result["run"]["name"] == "tokenflow"


def test_json_never_has_nan(synthetic, one_request):
    row = synthetic.request_row(0, [], error="boom", ended_s=1.0, requested_tokens=2)
    for run in (
        synthetic.run_of([], []),
        synthetic.run_of([row], [[]]),
        one_request([1.0]),
    ):
        found = figures(run)
        text = to_json(run_object(found))
        assert json.loads(text, parse_constant=pytest.fail)["tokenflow"]["tbt_s"]["p99"] is None
        if found.requests.counted:
            text = to_json(comparison_object(compare(found, [found])))
            parsed = json.loads(text, parse_constant=pytest.fail)
            assert parsed["comparisons"][0]["figures"]["tbt_p99"]["ratio"] is None


def test_markdown_is_a_table(judged):
    lines = markdown_table(compare(judged[0], judged[1:])).splitlines()
    assert lines[0] == "| figure | unit | stock | tokenflow | tokenflow / stock |"
    assert len({line.count(" | ") for line in lines}) == 1
    assert any(line.startswith("| completed | requests | 60 / 60 | 60 / 60 |") for line in lines)


def test_markdown_of_chosen_figures(judged):
    lines = markdown_table(judged[0], ["ttft_p99", "goodput"]).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| TTFT, P99", "| goodput"]
    with pytest.raises(ReportError, match="no figure is called ttft_p98; there are"):
        markdown_table(judged[0], ["ttft_p98"])


def test_hostile_names_stay_text(one_request, hostile):
    bad = figures(one_request([1.0, 2.0], info={"name": hostile, "invalid": (hostile,)}))
    for text in (printed(run_view(bad), 300), printed(comparison_view(compare(bad, [bad])), 300)):
        assert "[red]b[/red]" in text  # shown, not obeyed
        assert "\x1b" not in text
    table = markdown_table(bad)
    assert "<script" not in table and "\x1b" not in table
    assert len({line.count(" | ") for line in table.splitlines()[:3]}) == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.01234, "0.0123"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (1234.5, "1,234"),
        (-5.0, "-5.00"),
        (math.nan, "-"),
        (math.inf, "-"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


def test_intervals():
    assert interval(0.5, 0.4, 0.6) == "0.50x (0.40 to 0.60)"
    assert interval(1.004, 0.999, 1.01) == "1.004x (0.999 to 1.010)"
    assert interval(2.0, math.nan, math.nan) == "2.00x"
    assert interval(math.nan, math.nan, math.nan) == "-"


def test_plain_text_is_one_short_line():
    assert plain("a\x1b[31m\n b", 20) == "a [31m b"
    assert plain("abcdef", 4) == "abc…"
