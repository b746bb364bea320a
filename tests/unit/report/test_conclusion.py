"""The line that says what a run does, and verdicts of figures that are alike."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from rich.console import Console

from tokenflow_sgl.lab.report import CATALOGUE, Verdict, compare, figures
from tokenflow_sgl.lab.report.conclusion import conclusions
from tokenflow_sgl.lab.report.export import comparison_object, to_json
from tokenflow_sgl.lab.report.held_kv import HeldKv, held_kv, kv_sentence
from tokenflow_sgl.lab.report.terminal import comparison_view, run_view


def told(run, **target):
    return figures(dataclasses.replace(run, info=dataclasses.replace(run.info, target=target)))


def kv(peak, host_gb=0.0, used_gb=0.0):
    return {
        "kv_memory": {
            "tokens": 1000,
            "peak_tokens": peak,
            "host_bytes": 1e9 * host_gb,
            "host_peak_bytes": 1e9 * used_gb,
        }
    }


def line(*runs):
    (found,) = conclusions(compare(runs[0], runs[1:]))
    return found


def test_gains_and_costs_stand_in_one_line(pair):
    found = line(told(pair[0], **kv(990)), told(pair[1], **kv(1000, 4.2, 3.1)))
    assert found.name == "tokenflow"
    assert found.text.startswith("Gains: mean TTFT 1.66 to 0.121 s, P99 TTFT 4.36 to 0.248 s")
    assert " Costs: " in found.text and "mean TPOT 16.3 to 34.4 ms" in found.text
    assert "4.20 GB of host memory (3.10 GB of it in use)." in found.text
    assert found.text.endswith("KV peaked at 99% of 1,000 tokens.")
    assert found.gains[:2] == ("ttft_mean", "ttft_p99") and "tpot_mean" in found.costs
    assert found.host_bytes == pytest.approx(4.2e9)


def test_where_memory_was_free_there_is_nothing_to_gain(pair):
    """Figures that are alike are neither gains nor costs."""
    found = line(told(pair[0], **kv(380)), told(pair[0], **kv(380)))
    assert found.text == (
        "Gains: none that is clear. Costs: none that is clear. "
        "KV peaked at 38% of 1,000 tokens: nothing to gain below about 2.6 times this load."
    )


@pytest.mark.parametrize(
    ("held", "gained", "said"),
    [
        (HeldKv(1000, 0.38, True), True, "KV peaked at 38% of 1,000 tokens."),
        (HeldKv(1000, 0.95, True), False, "KV peaked at 95% of 1,000 tokens."),
        (HeldKv(1000, 0.0, True), False, "KV peaked at 0% of 1,000 tokens."),
        (
            HeldKv(1000, 0.5),
            False,
            "Streams under way held up to 50% of 1,000 tokens of KV memory, as a client sees it: "
            "nothing to gain below about 2.0 times this load.",
        ),
        (HeldKv(), False, "How full the KV memory was is not recorded."),
    ],
)
def test_what_is_said_of_memory(held, gained, said):
    assert kv_sentence(held, gained=gained) == said


def test_of_a_live_run_it_is_what_its_client_saw(synthetic):
    """Two streams overlap for a moment: 100 + 3 and 100 + 1 tokens."""
    times = [[1.0, 2.0, 3.0, 9.0], [5.0, 10.0]]
    rows = [synthetic.request_row(n, part) for n, part in enumerate(times)]
    server = {
        "max_total_num_tokens": 500,
        "dp_size": 2,
        "tp_size": 2,
        "enable_hierarchical_cache": True,
        "hicache_ratio": 2.0,
        "hicache_size": 0,
        "kv_cache_gb": 1.0,
    }

    def held(**changes):
        run = synthetic.run_of(rows, times, target={"server": {**server, **changes}})
        return held_kv(figures(run).judged.recording)

    assert held().tokens == 1000
    assert held().share == pytest.approx(0.205)  # with the first one's last token
    assert not held().measured
    assert held().host_bytes == pytest.approx(8 * 2**30)
    assert held(tokenflow_host_ratio=3.0).host_bytes == pytest.approx(12 * 2**30)
    assert held(hicache_size=3).host_bytes == pytest.approx(12e9)
    assert held(enable_hierarchical_cache=False).host_bytes == 0
    assert held(kv_cache_gb=None).host_bytes is None
    assert held(max_total_num_tokens=None).share is None


def test_runs_that_say_nothing_of_memory(pair):
    assert held_kv(figures(pair[0]).judged.recording) == HeldKv()
    text = line(*map(figures, pair)).text
    assert "How full the KV memory was is not recorded." in text
    assert text.endswith("How much host memory it takes is not recorded.")


def test_of_runs_that_do_not_count_nothing_is_concluded(synthetic, pair):
    bad = figures(synthetic.make_run("tokenflow", name="late", invalid=("Late.",)))
    assert line(figures(pair[0]), bad).text == "No verdict: late [INVALID]."


@pytest.fixture
def slower(synthetic):
    """Runs of 100 requests whose tokens come so many seconds later."""

    def make(extra):
        times = [[n + 1.0 + k * (0.00704 + extra) for k in range(50)] for n in range(100)]
        rows = [synthetic.request_row(n, part, scheduled_s=n) for n, part in enumerate(times)]
        return figures(synthetic.run_of(rows, times))

    return make


def change(runs, key):
    (found,) = [c for c in compare(runs[0], runs[1:]).others[0].changes if c.figure.key == key]
    return found


def test_equal_within_rounding_is_never_worse(slower):
    """As the issue saw it: TPOT, mean 7.04 7.04 1.000x worse."""
    alike = change((slower(0.0), slower(0.0000015)), "tpot_mean")
    assert alike.figure.show(alike.baseline) == alike.figure.show(alike.value) == "7.04"
    assert alike.verdict is Verdict.unclear
    assert change((slower(0.0), slower(0.00003)), "tpot_mean").verdict is Verdict.unclear
    assert change((slower(0.0), slower(0.0003)), "tpot_mean").verdict is Verdict.worse


@pytest.mark.parametrize("figure", CATALOGUE, ids=lambda figure: figure.key)
def test_what_is_shown_alike_is_alike(figure):
    assert figure.alike(7.04 / figure.scale, 7.0401 / figure.scale)
    assert not figure.alike(7.04 / figure.scale, 9.04 / figure.scale)


def test_a_stall_of_less_than_a_millisecond_is_none(synthetic):
    def run(late):
        times = [[n + 1.0 + 0.1 * k for k in range(20)] for n in range(40)]
        times = [[*part[:-1], part[-1] + late] for part in times]
        rows = [synthetic.request_row(n, part, scheduled_s=n) for n, part in enumerate(times)]
        return figures(synthetic.run_of(rows, times))

    assert change((run(0.0), run(0.0005)), "stall_p99").verdict is Verdict.unclear
    assert change((run(0.0), run(0.5)), "stall_p99").verdict is Verdict.worse


def rendered(view, width=80):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(view)
    return console.file.getvalue()


@pytest.mark.parametrize("everything", [False, True])
def test_at_80_columns_a_comparison_has_all_its_figures(pair, everything):
    comparison = compare(figures(pair[0]), [figures(pair[1])])
    text = rendered(comparison_view(comparison, everything=everything))
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    lines = [" ".join(each.split()) for each in text.splitlines()]
    assert "stock tokenflow ratio" in lines
    shown = [
        each
        for each in comparison.others[0].changes
        if each.verdict in (Verdict.better, Verdict.worse)
        or (everything and each.verdict is Verdict.unclear)
    ]
    for each in shown:
        figure = each.figure
        values = f" {figure.show(each.baseline)} {figure.show(each.value)} "
        mark = "unclear" if each.verdict is Verdict.unclear else each.verdict.value
        assert any(values in each and each.endswith(mark) for each in lines), figure.key


def test_at_80_columns_long_names_go_on_in_the_next_line(pair, synthetic):
    long = figures(
        synthetic.make_run("tokenflow", name="tokenflow-with-headroom-2", invalid=("x",))
    )
    text = rendered(comparison_view(compare(figures(pair[0]), [long])))
    assert "…" not in text
    (row,) = [each for each in text.splitlines() if each.startswith("TTFT, mean")]
    assert row.split()[3:5] == ["1.66", "0.121"]
    assert "INVALID" in text


def test_at_80_columns_a_run_has_all_its_figures(pair):
    judged = figures(pair[0])
    text = rendered(run_view(judged))
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    for name in ("mean", "P50", "P90", "P95", "P99", "P99.9", "max", "count"):
        (row,) = [each for each in text.splitlines() if each.split()[:1] == [name]]
        assert len(row.split()) == 7  # six latencies
    wide = rendered(run_view(judged), 120)
    assert "TTFT, from when it was due" in wide and "…" not in wide


def test_json_has_the_line_and_every_figure(pair):
    both = compare(told(pair[0], **kv(990)), [told(pair[1], **kv(1000, 4.2, 3.1))])
    (found,) = json.loads(to_json(comparison_object(both)))["comparisons"]
    assert found["conclusion"]["text"] == conclusions(both)[0].text
    assert found["conclusion"]["kv"]["share"] == 0.99
    assert set(found["figures"]) == {figure.key for figure in CATALOGUE}
