from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokenflow_sgl.lab.traces import (
    Accounting,
    PriorityUpdate,
    Trace,
    TraceError,
    TraceRequest,
    load_native,
    write_native,
)

SMALL = Trace(
    "small",
    (TraceRequest(0.5, 10, 5, rate=20.0), TraceRequest(1.25, 12, 6, session="a")),
    Accounting(3, 2, {"why": 1}),
    ("A note.",),
    (PriorityUpdate(2.0, 1, 3),),
)


@given(data=st.data())
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
def test_what_is_written_comes_back_equal(data, traces, tmp_path):
    trace = data.draw(traces)
    write_native(tmp_path / "t.jsonl", trace)
    assert load_native(tmp_path / "t.jsonl") == trace


def test_limits_and_thinking_are_written_where_there_are_some(tmp_path):
    request = TraceRequest(0.0, 10, 5, limit_tokens=4096, reasoning_tokens=3)
    write_native(tmp_path / "t.jsonl", Trace("t", (request,), Accounting(1, 1)))
    assert json.loads((tmp_path / "t.jsonl").read_text().splitlines()[1]) == {
        "arrival_s": 0.0,
        "prompt_tokens": 10,
        "output_tokens": 5,
        "limit_tokens": 4096,
        "reasoning_tokens": 3,
    }


def test_a_class_is_written_and_not_its_rate(tmp_path):
    request = TraceRequest(0.0, 10, 5, rate=5.0, qos_class="voice")
    write_native(tmp_path / "t.jsonl", Trace("t", (request,), Accounting(1, 1)))
    row = json.loads((tmp_path / "t.jsonl").read_text().splitlines()[1])
    assert row["qos_class"] == "voice"
    assert "rate" not in row
    (again,) = load_native(tmp_path / "t.jsonl").requests
    assert again == replace(request, rate=None)


def test_the_file_is_what_the_documentation_says(tmp_path):
    write_native(tmp_path / "t.jsonl", SMALL)
    assert [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()] == [
        {
            "format": "tokenflow-trace",
            "version": 1,
            "name": "small",
            "requests": 2,
            "updates": 1,
            "accounting": {"rows": 3, "emitted": 2, "dropped": {"why": 1}},
            "notes": ["A note."],
        },
        {"arrival_s": 0.5, "prompt_tokens": 10, "output_tokens": 5, "rate": 20.0},
        {"arrival_s": 1.25, "prompt_tokens": 12, "output_tokens": 6, "session": "a"},
        {"time_s": 2.0, "index": 1, "priority": 3},
    ]


def rows(tmp_path, trace=SMALL):
    path = tmp_path / "t.jsonl"
    write_native(path, trace)
    return path, [json.loads(line) for line in path.read_text().splitlines()]


def rewrite(path, lines):
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


@pytest.mark.parametrize(
    ("line", "change", "problem"),
    [
        (0, {"format": "other"}, "line 1, column format: is no header with 'tokenflow-trace'"),
        (0, {"version": 2}, "line 1, column version: is 2; allowed is 1"),
        (0, {"extra": 2}, "line 1, column that is not known: the column is unknown"),
        (0, {"notes": [5]}, "line 1, column notes: is 5; allowed is strings"),
        (0, {"name": 5}, "line 1, column name: is 5; allowed is a string"),
        (0, {"accounting": 5}, "line 1, column accounting: is 5"),
        (
            0,
            {"accounting": {"rows": 9, "emitted": 2, "dropped": {}}},
            "line 1, column accounting: has 9 rows, but 2 emitted and 0 dropped",
        ),
        (
            0,
            {"accounting": {"rows": 3, "emitted": 3, "dropped": {}}},
            "line 1, column accounting: is 3; allowed is emitted equal to requests, 2",
        ),
        (
            0,
            {"accounting": {"rows": 3, "emitted": 2, "dropped": {"x": -1}}},
            "line 1, column accounting: has counts in dropped that are no whole numbers",
        ),
        (
            1,
            {"rates": 5},
            r"line 2, column rates \(is rate meant\?\): the column is unknown; allowed are arr",
        ),
        (1, {"qos_class": "voice"}, "column qos_class: excludes rate, which is the class's"),
        (2, {"qos_class": 5}, "line 3, column qos_class: is 5; allowed is a string"),
        (1, {"rate": 0}, "line 2, column rate: is 0; allowed is a number above 0"),
        (1, {"rate": -3}, "line 2, column rate: is -3"),
        (1, {"prompt_tokens": 0}, "line 2, column prompt_tokens: is 0; allowed is a .* from 1 to"),
        (1, {"turn": 1}, "line 2, column turn: has a meaning only with session"),
        (1, {"think_s": 1}, "line 2, column think_s: has a meaning only with session"),
        (1, {"session": 7}, "line 2, column session: is 7; allowed is a string"),
        (1, {"priority": 1.5}, "line 2, column priority: is 1.5"),
        (1, {"priority": 2**40}, "line 2, column priority: is 1099511627776"),
        (1, {"prefix": [[1]]}, r"line 2, column prefix: is \[1\]"),
        (1, {"prefix": [[1, 0]]}, r"line 2, column prefix: is \[1, 0\]"),
        (1, {"prefix": [[1, 5], [2, 6]]}, "column prefix: has 11 tokens, more than .* 10"),
        (1, {"prefix": [[1, 2], [1, 3]]}, "column prefix: block 1 has 3 tokens here and 2 before"),
        (
            1,
            {"limit_tokens": 4},
            "column limit_tokens: is 4; allowed is at least output_tokens, .* 5",
        ),
        (1, {"limit_tokens": 0}, "column limit_tokens: is 0; allowed is a whole number from 1"),
        (1, {"reasoning_tokens": 6}, "column reasoning_tokens: is 6; allowed is at most .* 5"),
        (1, {"reasoning_tokens": -1}, "column reasoning_tokens: is -1"),
        (2, {"arrival_s": 0.25}, "line 3, column arrival_s: is earlier .*sort=yes"),
        (3, {"index": 2}, "line 4, column index: is 2; allowed is the position .* 0 to 1"),
        (3, {"rate": 2}, "line 4, column rate: the column is unknown"),
    ],
)
def test_what_is_wrong_is_named(line, change, problem, tmp_path):
    path, lines = rows(tmp_path)
    lines[line] |= change
    with pytest.raises(TraceError, match=problem):
        load_native(rewrite(path, lines))


def test_a_cut_or_longer_file_is_refused(tmp_path):
    path, lines = rows(tmp_path)
    with pytest.raises(TraceError, match=r"holds 2 requests and 0 changes .* says 2 and 1"):
        load_native(rewrite(path, lines[:-1]))
    with pytest.raises(TraceError, match=r"holds 1 requests and 0 changes .* says 2 and 1"):
        load_native(rewrite(path, lines[:2]))
    with pytest.raises(TraceError, match="holds 2 requests and 2 changes"):
        load_native(rewrite(path, [*lines, lines[-1]]))


def test_turns_must_count_from_0(tmp_path):
    path, lines = rows(tmp_path)
    lines[2]["turn"] = 1
    with pytest.raises(
        TraceError, match="request 1 is turn 1 of its session, where turn 0 is next"
    ):
        load_native(rewrite(path, lines))


def test_sorting_moves_indices_along(tmp_path):
    path, lines = rows(tmp_path, replace(SMALL, priority_updates=(PriorityUpdate(2.0, 1, 3),) * 2))
    lines[1]["arrival_s"], lines[3]["time_s"] = 9, 5
    trace = load_native(rewrite(path, lines), sort=True)
    assert [r.arrival_s for r in trace.requests] == [1.25, 9.0]
    assert trace.priority_updates == (PriorityUpdate(2.0, 0, 3), PriorityUpdate(5.0, 0, 3))
    with pytest.raises(TraceError):
        load_native(path)


def test_a_trace_that_json_cannot_hold_is_not_written(tmp_path):
    broken = replace(SMALL, requests=(TraceRequest(float("nan"), 1, 1),))
    with pytest.raises(ValueError, match="JSON compliant"):
        write_native(tmp_path / "t.jsonl", broken)


def test_a_file_that_ends_in_gz_is_compressed_and_the_same_each_time(tmp_path):
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_native(tmp_path / name, SMALL)
        assert load_native(tmp_path / name) == SMALL
    written = (tmp_path / "a.jsonl.gz").read_bytes()
    assert written.startswith(b"\x1f\x8b")
    assert written == (tmp_path / "b.jsonl.gz").read_bytes()


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_what_was_there_stays_until_all_is_written(name, tmp_path):
    path = tmp_path / name
    write_native(path, SMALL)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="JSON compliant"):
        write_native(path, replace(SMALL, requests=(TraceRequest(float("inf"), 1, 1),) * 2))
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_a_link_and_a_pipe_stay_what_they_are(tmp_path):
    (tmp_path / "link").symlink_to("t.jsonl")
    write_native(tmp_path / "link", SMALL)
    assert (tmp_path / "link").is_symlink()
    assert load_native(tmp_path / "t.jsonl") == SMALL
    write_native(Path("/dev/null"), SMALL)
    assert not Path("/dev/null").is_file()
