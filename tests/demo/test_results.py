import io
import json
import math

import pytest
from rich.console import Console

from tokenflow_sgl.demo.measure import BurstError, Row, compare, identical_answers, measure
from tokenflow_sgl.demo.plot import draw
from tokenflow_sgl.demo.report import result_table, write_json


@pytest.fixture
def runs(make_record):
    stock = measure("stock", [make_record(1.0), make_record(9.0, gap_s=0.25)])
    ours = measure("ours", [make_record(0.5), make_record(1.5)])
    return stock, ours


def rendered(table):
    console = Console(file=io.StringIO(), width=120)
    console.print(table)
    return console.file.getvalue()


def test_figures_are_those_of_the_readers(runs):
    stock, ours = runs
    rows = {row.label: row for row in compare([stock], [ours])}
    assert rows["TTFT, mean"].first == pytest.approx(5.0)
    assert rows["TTFT, mean"].second == pytest.approx(1.0)
    assert rows["TTFT, mean"].ratio == pytest.approx(0.2)
    # The slow stream comes every 0.25 s to a reader of 10 tokens/s: 0.15 s of stall for 19 tokens.
    assert rows["stalled time, all readers"].first == pytest.approx(19 * 0.15)
    assert rows["stalled > 0.1 s at a time"].first == 50.0
    assert rows["stalled > 0.1 s at a time"].second == 0.0
    assert rows["whole burst"].first == pytest.approx(9.0 + 19 * 0.25)
    assert rows["token throughput"].second == pytest.approx(40 / (1.5 + 19 * 0.05))


def test_rows_are_medians_over_the_bursts(make_record):
    runs = [measure("stock", [make_record(ttft)]) for ttft in (1.0, 100.0, 2.0)]
    rows = {row.label: row for row in compare(runs, runs)}
    assert rows["TTFT, P99"].first == pytest.approx(2.0)


def test_stalls_are_means_over_the_bursts(make_record):
    # 0.1 s of stall for 19 tokens in one burst of two, none in the other.
    runs = [measure("stock", [make_record(gap_s=gap)]) for gap in (0.2, 0.05)]
    rows = {row.label: row for row in compare(runs, runs)}
    assert rows["stalled time, all readers"].first == pytest.approx(1.9 / 2)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"error": "HTTP 400: no"}, "request 1 failed: HTTP 400"),
        ({"finish_reason": "stop"}, "ended with 'stop'"),
        ({"finish_reason": None}, "ended with None"),
        ({"output_ids": [1, 2]}, "after 2 of 20 tokens"),
    ],
)
def test_a_burst_with_a_failed_or_short_answer_is_not_judged(make_record, broken, message):
    bad = make_record()
    for name, value in broken.items():
        setattr(bad, name, value)
    with pytest.raises(BurstError, match=message):
        measure("stock", [make_record(), bad])


def test_answers_are_compared_token_for_token(make_record):
    same = measure("a", [make_record(), make_record(first_id=500)])
    other = measure("b", [make_record(), make_record(first_id=501)])
    assert identical_answers([same], [same]) == 2
    assert identical_answers([same, same], [same, other]) == 3


def test_table_shows_both_servers_and_who_is_better(runs):
    stock, ours = runs
    text = rendered(result_table(("stock", "ours"), 1, compare([stock], [ours])))
    assert "ours / stock" in text
    line = next(line for line in text.splitlines() if "TTFT, mean" in line)
    assert "5.00" in line and "1.00" in line and "0.20x" in line


@pytest.mark.parametrize(
    ("first", "second", "higher_is_better", "colour"),
    [
        (2.0, 1.0, False, "green"),
        (2.0, 1.0, True, "red"),
        (1.0, 2.0, True, "green"),
        (1.0, 1.02, True, None),
    ],
)
def test_colour_means_better_or_worse(first, second, higher_is_better, colour):
    table = result_table(("a", "b"), 3, [Row("x", "s", higher_is_better, first, second)])
    cell = next(iter(table.columns[-1].cells))
    assert cell == f"{second / first:.2f}x" if colour is None else f"[{colour}]" in cell


def test_a_ratio_to_nothing_is_a_dash():
    row = Row("stalls", "s", False, 0.0, 1.0)
    assert math.isnan(row.ratio)
    assert "-" in rendered(result_table(("a", "b"), 1, [row])).splitlines()[-1]


def test_json_holds_every_token_and_no_nan(runs, tmp_path):
    path = tmp_path / "demo.json"
    rows = (*compare([runs[0]], [runs[1]]), Row("stalls", "s", False, 0.0, 1.0))
    write_json(path, {"kv_tokens": 5000}, runs, rows, identical=2)
    result = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert result["setting"] == {"kv_tokens": 5000}
    assert result["identical_answers"] == 2
    assert result["comparison"][-1]["ratio"] is None
    assert [run["server"] for run in result["runs"]] == ["stock", "ours"]
    assert all(len(s["token_times_s"]) == 20 for run in result["runs"] for s in run["streams"])


def test_picture_is_drawn(runs, tmp_path):
    path = tmp_path / "demo.png"
    draw(path, runs, "two readers")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000
