"""``tokenflow explain``: times, identifiers and logs, as users ask about them."""

from __future__ import annotations

import datetime
import json

import pytest
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app

NOON = datetime.datetime(2026, 11, 22, 12, 3, 4).timestamp()


@pytest.fixture
def explain(tmp_path):
    """Writes events into a log, (seconds after noon, request, what), and asks about them."""

    def run(events_of, *options: str, columns: int = 400):
        lines = []
        for seconds, rid, what in events_of:
            line = {"time": NOON + seconds, "preempt": [], "candidates": [], "admit": []}
            line |= {"take_up": [], "load": [], "device_free": 1, "device_total": 4}
            line |= {"streams": {"running": 1, "paused": 2, "waiting": 3}}
            line[what] = [{"rid": rid, "cause": "memory"}] if what == "preempt" else [rid]
            lines.append(json.dumps(line) + "\n")
        path = tmp_path / "decisions.jsonl"
        path.write_text("".join(lines))
        result = CliRunner().invoke(
            app, ["explain", str(path), *options], env={"COLUMNS": str(columns)}
        )
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result.exit_code, result.output

    return run


ABOUT_NOON = [(0, "req-0", "admit"), (10, "req-1", "admit"), (600, "req-0", "preempt")]


def test_another_hour_is_never_shown_for_the_one_that_was_asked_for(explain) -> None:
    code, output = explain(ABOUT_NOON, "--at", "03:00:00")
    assert code == 1
    assert "admitted" not in output
    assert "03:00:00 is not in the log, which goes from 2026-11-22 12:03:04" in output
    assert "to 2026-11-22 12:13:04" in output


def test_a_quiet_time_says_when_something_happened_next(explain) -> None:
    code, output = explain(ABOUT_NOON, "--at", "12:08:00")
    assert code == 1
    assert "nothing happened within 60 s of 2026-11-22 12:08:00" in output
    assert "the event before is at 2026-11-22 12:03:14, the next at 2026-11-22 12:13:04" in output
    # The time is in the log, only not in what is known of this stream.
    code, output = explain(ABOUT_NOON, "--at", "12:13:04", "--stream", "req-1")
    assert code == 1
    assert "nothing happened to req-1 within 60 s of 2026-11-22 12:13:04" in output


def test_around_a_time_there_are_only_events_of_that_minute(explain) -> None:
    code, output = explain(ABOUT_NOON, "--at", "12:03:04")
    assert code == 0
    assert "12:03:14" in output and "12:13:04.0" not in output


def test_midnight_is_no_border(explain) -> None:
    midnight = (datetime.datetime(2026, 11, 23) - datetime.datetime(2026, 11, 22, 12, 3, 4)).seconds
    story = [(midnight - 2, "req-0", "admit"), (midnight + 3, "req-1", "admit")]
    code, output = explain(story, "--at", "2026-11-23T00:00:00")
    assert code == 0, output
    assert "2026-11-22 23:59:58.0" in output and "2026-11-23 00:00:03.0" in output


def test_a_time_that_a_log_of_days_has_twice_needs_its_date(explain) -> None:
    days = [(0, "req-0", "admit"), (24 * 3600, "req-1", "admit")]
    code, output = explain(days, "--at", "12:03:04")
    assert code == 2
    assert "12:03:04 is in the log on 2026-11-22 and 2026-11-23" in output
    code, output = explain(days, "--at", "2026-11-22T12:03:04")
    assert code == 0
    assert "req-0" in output and "req-1" not in output


def test_a_log_without_events_is_an_error(explain) -> None:
    code, output = explain([])
    assert code == 1
    assert "has no events: no stream was admitted, paused, resumed or restored" in output


LONG = [f"{hash_}{number:028x}" for number, hash_ in enumerate(("7f3a", "7f3b", "90aa"))]


def test_a_narrow_terminal_cuts_no_identifier_beyond_recognition(explain) -> None:
    story = [(second, rid, "admit") for second, rid in enumerate(LONG)]
    code, output = explain(story, columns=80)
    assert code == 0
    assert "…" not in output
    shown = [line.split()[1] for line in output.splitlines() if "admitted" in line.split()]
    assert len(set(shown)) == 3 and all(len(each) >= 8 for each in shown)
    for rid, short in zip(LONG, shown, strict=True):
        assert rid.startswith(short)
        code, output = explain(story, "--stream", short, columns=80)
        assert code == 0
        assert rid in output, "what was cut is whole where one stream is asked for"


def test_the_beginning_of_an_identifier_names_a_stream_if_it_is_the_only_one(explain) -> None:
    story = [(second, rid, "admit") for second, rid in enumerate((*LONG, "90", "aa"))]
    code, output = explain(story, "--stream", "7f3")
    assert code == 2
    assert f"--stream 7f3 may be {LONG[0]} or {LONG[1]}" in output
    assert explain(story, "--stream", "7f3a")[0] == 0
    code, output = explain(story, "--stream", "90")
    assert code == 0 and LONG[2] not in output, "a whole identifier is no beginning of another"


def test_a_log_that_is_not_there(tmp_path) -> None:
    result = CliRunner().invoke(app, ["explain", str(tmp_path / "none.jsonl")])
    assert result.exit_code == 2
    assert "cannot be read: No such file" in result.output
