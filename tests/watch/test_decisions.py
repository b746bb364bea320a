"""The log of decisions, from the scheduler's pass to the sentence that explains it."""

from __future__ import annotations

import dataclasses
import datetime
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.costs import StepCosts
from tokenflow_sgl.engine.decision_log import MOST_CANDIDATES, DecisionLog, log_path
from tokenflow_sgl.policy import (
    Cause,
    Decision,
    Memory,
    Mode,
    Phase,
    Preemption,
    State,
    Streams,
)
from tokenflow_sgl.watch import decisions
from tokenflow_sgl.watch.decisions import LogError, events, read_log, short_names

NOON = datetime.datetime(2026, 11, 22, 12, 3, 4).timestamp()


def make_stream(slot: int, phase: Phase, generated: int = 0, slack: float = 1.0):
    return slot, phase, generated, slack


def make_state(*rows) -> State:
    """A state at 100 s; each reader takes 10 tokens/s, prompts have 100 tokens, answers 400."""
    slot, phase, generated, slack = (np.array(column) for column in zip(*rows, strict=True))
    same = np.ones(len(rows))
    return State(
        now=100.0,
        streams=Streams(
            slot=slot,
            phase=phase.astype(np.int8),
            arrival=90.0 * same,
            rate=10.0 * same,
            next_due=100.0 + slack,
            prompt=(100 * same).astype(np.int64),
            generated=generated,
            expected=400.0 * same,
            since=95.0 * same,
            admitted=same > 0,
            preemptible=same > 0,
            streaming=same > 0,
            ready=same < 0,
            unwritten=np.zeros(len(rows), dtype=np.int64),
        ),
        memory=Memory(1000, 50, 0, 4000, 1, 64),
        costs=StepCosts(decode=(0.008, 2e-5, 2e-8)),
    )


@pytest.fixture
def state():
    """One runs far ahead, one is paused in a stall, one waits for its first token."""
    return make_state(
        make_stream(slot=0, phase=Phase.RUNNING, generated=100, slack=12.5),
        make_stream(slot=1, phase=Phase.PAUSED, generated=50, slack=-0.5),
        make_stream(slot=2, phase=Phase.WAITING, generated=0, slack=-3.0),
    )


@pytest.fixture
def log(tmp_path):
    class Clock:
        now = NOON

        def __call__(self) -> float:
            return self.now

    clock = Clock()
    made = DecisionLog(tmp_path / "decisions.jsonl", lambda slot: f"req-{slot}", clock)
    yield made, clock, tmp_path / "decisions.jsonl"
    made.close()


EXCHANGE = Decision(
    Mode.WORKING_SET, admit=(2,), preempt=(Preemption(0, Cause.EXCHANGE),), run=(1,)
)


def test_a_pass_becomes_sentences(log, state) -> None:
    made, _, path = log
    made.write(state, EXCHANGE)
    found = {event.rid: event for event in events(read_log(path))}
    assert {rid: event.what for rid, event in found.items()} == {
        "req-0": "paused",
        "req-1": "scheduled",
        "req-2": "admitted",
    }
    why = found["req-0"].why
    assert why.startswith("to free memory for a paused stream that is closer to a stall")
    assert "its reader has 12.5 s unread, 100 of about" in why
    assert "Instead: req-1: its reader has stalled for 0.5 s, 50 of about" in why
    assert all(event.time == pytest.approx(NOON) for event in found.values())


def test_nothing_is_written_where_nothing_happens(log, state) -> None:
    made, clock, path = log
    for decision in (
        Decision(Mode.IDLE),
        Decision(Mode.FALLBACK),
        Decision(Mode.WORKING_SET),
        dataclasses.replace(EXCHANGE, admit=(), preempt=()),
    ):
        clock.now += 1.0
        made.write(state, decision)
    clock.now += 1.0
    made.write(state, dataclasses.replace(EXCHANGE, admit=(), preempt=()))  # as before
    assert len(path.read_text().splitlines()) == 1


def test_a_busy_server_leaves_lines_out_but_no_preemption(log, state) -> None:
    made, _, path = log
    for number in range(10):
        made.write(state, Decision(Mode.WORKING_SET, admit=(number % 3,)))
    made.write(state, EXCHANGE)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["left_out"] for line in lines] == [0, 9]


def test_a_log_that_fails_raises_nothing(tmp_path, state, capsys) -> None:
    def nameless(slot: int) -> str:
        raise RuntimeError("no name")

    made = DecisionLog(tmp_path / "log", nameless)
    made.write(state, EXCHANGE)
    assert "no name" in capsys.readouterr().err
    (tmp_path / "gone").mkdir()
    made = DecisionLog(tmp_path / "gone" / "log", str)
    (tmp_path / "gone").rmdir()
    made.write(state, EXCHANGE)
    assert "No such file" in capsys.readouterr().err


def test_a_line_is_bounded(log) -> None:
    made, _, path = log
    streams = [
        make_stream(slot=slot, phase=Phase.RUNNING if slot % 2 else Phase.PAUSED, generated=5)
        for slot in range(200)
    ]
    made.write(make_state(*streams), EXCHANGE)
    (line,) = read_log(path)
    assert len(line["candidates"]) <= 2 * MOST_CANDIDATES + 3
    assert line["streams"]["running"] == 100


def test_rotated_files_are_read_in_their_order(tmp_path) -> None:
    for number, name in ((3, "log.2"), (2, "log.10"), (4, "log.1"), (5, "log")):
        line = {"time": number, "preempt": [], "candidates": [], "admit": ["a"]}
        line |= {"take_up": [], "load": []}
        (tmp_path / name).write_text(json.dumps(line) + "\n")
    assert [line["time"] for line in read_log(tmp_path / "log")] == [2, 3, 4, 5]


@pytest.mark.parametrize("text", ["what?\n", "{}\n", "[1]\n", '{"time": 3}\n'])
def test_other_files_are_refused(tmp_path, text) -> None:
    (tmp_path / "log").write_text(text)
    with pytest.raises(LogError, match="line 1 is not one of a log of decisions"):
        list(read_log(tmp_path / "log"))


def test_a_line_that_is_being_written_is_left_out(tmp_path) -> None:
    (tmp_path / "log").write_text('{"time": 3, "preem')
    assert list(read_log(tmp_path / "log")) == []


def test_every_cause_is_explained() -> None:
    assert set(decisions.CAUSES) == {cause.value for cause in Cause}


def test_replicas_have_files_of_their_own() -> None:
    assert str(log_path("a/log", (None, 0))) == "a/log"
    assert str(log_path("a/log", (2, 1))) == "a/log.2.1"


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


@pytest.fixture
def explained(log, state):
    made, clock, path = log
    made.write(state, EXCHANGE)
    clock.now += 60.0
    made.write(state, dataclasses.replace(EXCHANGE, admit=(), run=(2,)))

    def run(*options: str):
        result = CliRunner().invoke(app, ["explain", str(path), *options], env={"COLUMNS": "400"})
        return result.exit_code, result.output

    return run


def test_the_command_answers_why_a_stream_was_paused(explained) -> None:
    code, output = explained("--stream", "req-0", "--at", "12:03:04", "--last", "1")
    assert code == 0
    assert "12:03:04.0" in output and "paused" in output
    assert "its reader has 12.5 s unread" in output
    assert "1 running, 1 paused, 1 waiting" in output
    assert "5 events in the log: 2 paused" in output
    assert "2026-11-22 12:03:04 to 2026-11-22 12:04:04" in output


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
    assert "has no events: no stream was admitted, paused or resumed" in output


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


def test_identifiers_are_cut_where_they_differ() -> None:
    names = short_names(["a" * 32, "a" * 20 + "b", "b" * 32, "c", "user-1", "user-10"])
    assert names == {
        "a" * 32: "a" * 21,
        "a" * 20 + "b": "a" * 20 + "b",
        "b" * 32: "b" * 8,
        "c": "c",
        "user-1": "user-1",
        "user-10": "user-10",
    }


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--stream", "req-9"), 1, "the log has nothing of a stream req-9; it has req-"),
        (("--at", "noon"), 2, "--at is 'noon'; allowed is a time like 12:03:04"),
    ],
)
def test_wrong_questions_are_answered(explained, options, code, message) -> None:
    found, output = explained(*options)
    assert found == code
    assert message in output


def test_a_log_that_is_not_there(tmp_path) -> None:
    result = CliRunner().invoke(app, ["explain", str(tmp_path / "none.jsonl")])
    assert result.exit_code == 2
    assert "cannot be read: No such file" in result.output
