"""Replays against a server on a virtual clock, which says itself when tokens come."""

from types import SimpleNamespace

import pytest

from tokenflow_sgl.choices import Api, Sessions
from tokenflow_sgl.lab.replay import ReplayError, ReplayOptions
from tokenflow_sgl.lab.replay.stream_client import StreamClient
from tokenflow_sgl.lab.replay.virtual import VirtualReplayer

VIRTUAL = {
    "internal_states": [
        {
            "emulated_device": {
                "device": "toy",
                "time_dilation": 1.0,
                "virtual_time": True,
                "steps": 0,
                "late_steps": 0,
                "busy_seconds": 0.0,
                "starved_seconds": 0.0,
            }
        }
    ]
}


@pytest.fixture
def replayed(on_stub):
    """Replay against such a server; returns the stub and the run."""

    def run(requests, options=None, **behaviour):
        return on_stub(requests, options, server_info=VIRTUAL, **behaviour)

    return run


def arrivals(stub):
    return [body["sampling_params"]["custom_params"]["emulated_arrival"] for _, body in stub.bodies]


def test_everything_is_sent_at_once_with_its_arrival(replayed, ask, rows):
    # Sent when they are due, they would take a minute.
    stub, run = replayed([ask(0.0, output=3), ask(2.5, output=2), ask(60.0, output=1)])
    assert sorted(arrivals(stub), key=lambda each: each["index"]) == [
        {"at_s": 0.0, "index": 0, "of": 3},
        {"at_s": 2.5, "index": 1, "of": 3},
        {"at_s": 60.0, "index": 2, "of": 3},
    ]
    first, second, last = rows(run)
    assert first["times"] == pytest.approx([0.1, 0.2, 0.3])
    assert second["times"] == pytest.approx([2.6, 2.7])
    assert (second["sent_s"], second["scheduled_s"]) == (2.5, 2.5)
    assert last["ended_s"] == run.info.duration_s == pytest.approx(60.1)
    assert run.info.time_scale == 1.0


def test_this_machines_pace_makes_no_run_invalid(replayed, ask, monkeypatch):
    monkeypatch.setattr("tokenflow_sgl.lab.replay.outcome.MAX_LAG_S", -1.0)
    _, run = replayed([ask()])
    assert not run.info.invalid
    assert run.info.send_lag_p99_s is None


def test_a_stream_may_wait_for_as_long_as_others_get_tokens(replayed, ask, rows, monkeypatch):
    """A slow machine needs minutes for what is seconds on the server's clock.

    Here 0.05 s pass from look to look at the streams, however long this machine stands still.
    """
    tokens, now_s = [], 0.0
    give_up, look = StreamClient.give_up_silent, VirtualReplayer._give_up_silent

    def noted(client, timeout_s):
        tokens.append(client.tokens)
        give_up(client, timeout_s)

    def looked(replayer):
        nonlocal now_s
        now_s += 0.05
        look(replayer)

    monkeypatch.setattr(StreamClient, "give_up_silent", noted)
    monkeypatch.setattr(VirtualReplayer, "_give_up_silent", looked)
    monkeypatch.setattr("tokenflow_sgl.lab.replay.base_replayer._OBSERVE_EVERY_S", 0.05)
    for module in ("stream", "stream_client", "virtual"):
        clock = SimpleNamespace(monotonic=lambda: now_s)
        monkeypatch.setattr(f"tokenflow_sgl.lab.replay.{module}.time", clock)
    options = ReplayOptions(timeout_s=1.0)
    requests = [ask(0.0), ask(0.0, output=20)]
    _, run = replayed(requests, options, failures={0: "hang"}, gap_s=0.15)
    silent, other = rows(run)
    assert "given up: no token came for 1 s" in silent["error"]
    assert (other["error"], other["output_tokens"]) == (None, 20)
    assert tokens[0] == 2 + 20, "when the other one had all of them"


def test_the_warm_up_burst_is_a_trace_of_its_own(replayed, ask, rows):
    options = ReplayOptions(warm_up_burst=2)
    stub, run = replayed([ask(5.0), ask(6.0), ask(7.0)], options)
    assert [(each["at_s"], each["of"]) for each in arrivals(stub)[:2]] == [(0.0, 2)] * 2
    assert [each["of"] for each in arrivals(stub)[2:]] == [3] * 3
    assert len(run.tokens) == 15


@pytest.mark.parametrize("cumulative", [False, True])
def test_answers_are_handed_over_with_their_ids(on_stub, ask, cumulative):
    answers = {}
    on_stub(
        [ask(output=4), ask(output=2)],
        how=lambda _: {"answered": lambda index, answer: answers.update({index: answer.ids})},
        server_info=VIRTUAL,
        tokens_per_chunk=2,
        cumulative=cumulative,
    )
    assert answers == {0: [100, 101, 102, 103], 1: [100, 101]}


def test_so_they_are_by_the_wall_clock(on_stub, ask):
    answers = {}
    on_stub(
        [ask(output=4)],
        how=lambda _: {"answered": lambda index, answer: answers.update({index: answer.ids})},
    )
    assert answers == {0: [100, 101, 102, 103]}


def test_readers_are_counted_at_the_servers_second(on_stub, ask):
    seen = []
    # The first reads 10 tokens per second, as they come; the second one in ten seconds.
    on_stub(
        [ask(0.0, output=30), ask(0.0, output=4, rate=0.1), ask(500.0, output=1)],
        how=lambda _: {"observe": lambda snapshot, wall_s: seen.append(snapshot)},
        server_info=VIRTUAL,
        gap_s=0.02,
    )
    last = seen[-1]
    assert (last.finished, last.failed, last.running, last.waiting) == (3, 0, 0, 0)
    assert last.sent == last.total == 3
    assert last.time_s == pytest.approx(500.1)
    assert all(0 <= each.stalled <= each.running for each in seen)


def test_a_failing_stream_leaves_the_others_alone(replayed, ask, rows):
    _, run = replayed([ask(), ask(), ask()], failures={1: "500"})
    errors = [row["error"] for row in rows(run)]
    assert sum(error is not None for error in errors) == 1
    assert "no 500" in " ".join(filter(None, errors))


def test_tokens_without_stamps_are_an_error(replayed, ask, rows):
    _, run = replayed([ask()], stamps=False)
    assert "emulated_s" in rows(run)[0]["error"]


def test_what_needs_the_wall_clock_is_refused(replayed, ask):
    with pytest.raises(ReplayError, match="virtual clock, which only --api generate knows"):
        replayed([ask()], ReplayOptions(api=Api.completions))


def test_a_turn_is_sent_when_the_answer_before_it_has_ended(replayed, ask, rows):
    turns = [
        ask(1.0, output=3, session="s"),
        ask(0.5, output=2),
        ask(1.0, prompt=40, output=2, session="s", turn=1, think_s=5.0),
        ask(1.0, prompt=80, output=1, session="s", turn=2, think_s=0.0),
    ]
    stub, run = replayed(turns)
    sent = {each["index"]: each for each in arrivals(stub)}
    assert sent[0] == {"at_s": 1.0, "index": 0, "of": 4, "later_turns": 2}
    assert sent[1] == {"at_s": 0.5, "index": 1, "of": 4}
    assert sent[2] == {
        "at_s": pytest.approx(6.3),
        "index": 2,
        "of": 4,
        "later_turns": 1,
        "after": 0,
    }
    assert sent[3] == {"at_s": pytest.approx(6.5), "index": 3, "of": 4, "after": 2}
    assert [row["scheduled_s"] for row in rows(run)] == pytest.approx([1.0, 0.5, 6.3, 6.5])
    bodies = {
        body["sampling_params"]["custom_params"]["emulated_arrival"]["index"]: body["input_ids"]
        for _, body in stub.bodies
    }
    first = len(bodies[0])
    assert bodies[2][:first] == bodies[0], "it goes on behind the prompt before"
    assert bodies[2][first : first + 3] == [100, 101, 102], "and its answer"


def test_open_sessions_wait_for_no_answer(replayed, ask, rows):
    turns = [ask(session="s"), ask(2.0, session="s", turn=1, think_s=9.0)]
    stub, run = replayed(turns, ReplayOptions(sessions=Sessions.open))
    assert all("after" not in each and "later_turns" not in each for each in arrivals(stub))
    assert [row["scheduled_s"] for row in rows(run)] == [0.0, 2.0]


def test_behind_a_turn_that_failed_none_is_sent(replayed, ask, rows):
    turns = [ask(session="s", turn=turn) for turn in range(3)]
    stub, run = replayed([*turns, ask()], failures={0: "abort"})
    failed, *later, other = rows(run)
    assert "evicted" in failed["error"]
    assert [row["error"] for row in later] == ["not sent: turn 0 of session s failed"] * 2
    assert other["error"] is None and len(stub.bodies) == 2
