"""The log of decisions, from the scheduler's pass to the sentence that explains it."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections import Counter

import numpy as np
import pytest
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.contract import (
    Cause,
    Decision,
    Memory,
    Mode,
    Phase,
    Pool,
    Preempt,
    Standing,
    State,
    Streams,
    Tier,
)
from tokenflow_sgl.costs import StepCosts
from tokenflow_sgl.engine.telemetry.decision_log import MOST_CANDIDATES, DecisionLog
from tokenflow_sgl.engine.telemetry.prometheus import Recorder
from tokenflow_sgl.lab.observe import stream_events
from tokenflow_sgl.lab.observe.stream_events import LogError, events, read_log, short_names

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
            standing=Standing(slot, phase.astype(np.int8), since=95.0 * same),
            arrival=90.0 * same,
            rate=10.0 * same,
            next_due=100.0 + slack,
            prompt=(100 * same).astype(np.int64),
            generated=generated,
            limit=(400 * same).astype(np.int64),
            kind=np.zeros(len(rows), dtype=np.int64),
            admitted=same > 0,
            preemptible=same > 0,
            streaming=same > 0,
            ready=same < 0,
            unwritten=np.zeros(len(rows), dtype=np.int64),
        ),
        memory=Memory(
            device=Tier(kv=Pool(1000, 50)),
            host=Tier(kv=Pool(4000)),
            page_size=1,
            max_running=64,
        ),
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


EXCHANGE = Decision(Mode.WORKING_SET, admit=(2,), preempt=(Preempt(0, Cause.EXCHANGE),), run=(1,))


def test_a_pass_becomes_sentences(log, state) -> None:
    made, _, path = log
    made.write(state, EXCHANGE)
    made.close()
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
    made.close()
    assert len(path.read_text().splitlines()) == 1


def test_a_busy_server_leaves_lines_out_but_no_preemption(log, state) -> None:
    made, _, path = log
    for number in range(10):
        made.write(state, Decision(Mode.WORKING_SET, admit=(number % 3,)))
    made.write(state, EXCHANGE)
    made.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["left_out"] for line in lines] == [0, 9]


def test_a_clock_that_is_set_back_silences_nothing(log, state) -> None:
    made, clock, path = log
    for hour in range(3):
        clock.now = NOON - 3600.0 * hour
        made.write(state, Decision(Mode.WORKING_SET, admit=(hour,)))
    made.close()
    assert [event.rid for event in events(read_log(path))] == ["req-0", "req-1", "req-2"]


def test_another_stream_in_the_same_slot_is_scheduled_anew(tmp_path, state) -> None:
    name, now = "first", iter(np.arange(NOON, NOON + 60.0))
    made = DecisionLog(tmp_path / "log", lambda slot: name, lambda: float(next(now)))
    for _ in range(2):
        made.write(state, Decision(Mode.WORKING_SET, run=(1,)))
    name = "second"
    made.write(state, Decision(Mode.WORKING_SET, run=(1,)))
    made.close()
    assert [event.rid for event in events(read_log(tmp_path / "log"))] == ["first", "second"]


def test_a_log_that_fails_raises_nothing(tmp_path, state, caplog) -> None:
    def nameless(slot: int) -> str:
        raise RuntimeError("no name")

    made = DecisionLog(tmp_path / "log", nameless)
    for _ in range(3):
        made.write(state, EXCHANGE)
    assert [record.exc_text.count("RuntimeError: no name") for record in caplog.records] == [1]


class Counting(Recorder):
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def count(self, name: str, amount: float, **labels: str) -> None:
        self.counts[name] += int(amount)


def test_a_full_disk_is_told_once_and_counted(tmp_path, state, caplog, capsys) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    told = Counting()
    made = DecisionLog(tmp_path / "log", str, recorder=told)
    for _ in range(115):
        made.write(state, EXCHANGE)
    made.close()
    assert caplog.text.count("No space left on device") == 1
    assert len(caplog.records) == 1
    assert capsys.readouterr().err == ""
    assert told.counts == {"decision_log_lost_lines_total": 115}


def test_a_line_is_bounded(log) -> None:
    made, _, path = log
    streams = [
        make_stream(slot=slot, phase=Phase.RUNNING if slot % 2 else Phase.PAUSED, generated=5)
        for slot in range(200)
    ]
    made.write(make_state(*streams), EXCHANGE)
    made.close()
    (line,) = read_log(path)
    assert len(line["candidates"]) <= 2 * MOST_CANDIDATES + 3
    assert line["streams"]["running"] == 100


def test_rotated_files_are_read_in_their_order(tmp_path) -> None:
    for number, name in ((3, "log.2"), (2, "log.10"), (4, "log.1"), (5, "log")):
        line = {"time": number, "preempt": [], "candidates": [], "admit": ["a"]}
        line |= {"take_up": [], "load": []}
        (tmp_path / name).write_text(json.dumps(line) + "\n")
    assert [line["time"] for line in read_log(tmp_path / "log")] == [2, 3, 4, 5]


@pytest.mark.parametrize(
    "text",
    [
        "what?\n",
        "{}\n",
        "[1]\n",
        '{"time": 3}\n',
        '{"time": 3, "restored": {}}\n',
        "[" * 5000 + "\n",
        f'{{"time": {10**400}}}\n',
    ],
    ids=range(7),
)
def test_other_files_are_refused(tmp_path, text) -> None:
    (tmp_path / "log").write_text(text)
    with pytest.raises(LogError, match="line 1 is not one of a log of decisions"):
        list(read_log(tmp_path / "log"))


def test_a_line_that_is_being_written_is_left_out(tmp_path) -> None:
    (tmp_path / "log").write_text('{"time": 3, "preem')
    assert list(read_log(tmp_path / "log")) == []


def test_every_cause_is_explained() -> None:
    assert set(stream_events.CAUSES) == {cause.value for cause in Cause}


def test_ranks_are_read_together(tmp_path) -> None:
    """What one has scheduled says nothing of the other's streams."""
    written = {"log.1": (1, "a"), "log": (3, "a"), "log.dp1.1": (2, "b"), "log.dp1": (4, "b")}
    for name, (number, rid) in {**written, "log.html": (5, "c")}.items():
        line = {"time": number, "preempt": [], "candidates": [], "admit": [], "load": []}
        (tmp_path / name).write_text(json.dumps({**line, "take_up": [rid]}) + "\n")
    lines = list(read_log(tmp_path / "log"))
    assert [(line["time"], line["rank"]) for line in lines] == [
        (1, ""),
        (2, ".dp1"),
        (3, ""),
        (4, ".dp1"),
    ]
    assert [(each.time, each.rid) for each in events(lines)] == [(1, "a"), (2, "b")]


@pytest.fixture
def explained(log, state):
    made, clock, path = log
    made.write(state, EXCHANGE)
    clock.now += 60.0
    made.write(state, dataclasses.replace(EXCHANGE, admit=(), run=(2,)))
    made.close()

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


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (
            {"way": "both", "computed": 448, "fetched": 1600},
            "448 tokens of its stored prefix were computed while 1,600 came from the storage, in "
            "0.023 s; computing all takes 0.047 s; fetching all takes 0.026 s",
        ),
        (
            {"way": "fetched", "computed": 0, "fetched": 2048, "seconds": {"took": 0.2}},
            "all 2,048 tokens of its stored prefix were fetched, in 0.200 s",
        ),
        (
            {"way": "computed", "computed": 2048, "fetched": 0},
            "all 2,048 tokens of its stored prefix are computed, as that is soonest; computing "
            "all takes 0.047 s; fetching all takes 0.026 s",
        ),
        (
            {"way": "computed", "computed": 2048, "fetched": 0, "failed": True, "seconds": {}},
            "all 2,048 tokens of its stored prefix are computed, as the storage failed",
        ),
        (
            {"way": "layers", "computed": 1600, "fetched": 448, "layers": (25, 32)},
            "25 of 32 layers of its stored prefix of 2,048 tokens were computed while the others "
            "came from the storage, in 0.023 s; computing all takes 0.047 s; fetching all takes "
            "0.026 s",
        ),
    ],
)
def test_a_restoration_says_why_it_went_its_way(log, told, why) -> None:
    made, _, path = log
    seconds = {"compute": 0.047, "fetch": 0.026, "took": 0.0234}
    made.restored({"rid": "req-7", "failed": False, "seconds": seconds} | told)
    made.close()
    (event,) = events(read_log(path))
    assert (event.rid, event.what, event.why) == ("req-7", "restored", why)
    result = CliRunner().invoke(app, ["explain", str(path)], env={"COLUMNS": "400"})
    assert result.exit_code == 0
    assert why in result.output
    assert "1 events in the log: 1 restored" in result.output


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
