"""The replay against a server that behaves, and against servers that do not."""

import asyncio
import itertools
import json
import time

import pytest
from rich.console import Console

from tokenflow_sgl.choices import Api, Sessions
from tokenflow_sgl.lab.replay import ReplayError, ReplayOptions
from tokenflow_sgl.lab.replay.stream_client import StreamClient
from tokenflow_sgl.lab.replay.summary_table import summary_table
from tokenflow_sgl.lab.runs import read_run, write_run
from tokenflow_sgl.lab.traces.request import PriorityUpdate

DEVICE = {"device": "h200", "model": "m", "time_dilation": 4.0, "steps": 0, "late_steps": 0}
KNOWN = ReplayOptions(known_lengths=True)
"""The stub's answers end at their limit only."""
EMULATED = {"internal_states": [{"emulated_device": DEVICE}]}


def test_every_token_gets_its_time_on_the_traces_clock(ask, on_stub, rows):
    requests = [ask(output=4, ttft_slo_s=1.5), ask(0.2, prompt=7, output=3, rate=20.0, priority=2)]
    stub, run = on_stub(requests, gap_s=0.02, server_info={"version": "1"})
    first, second = rows(run)
    assert [path for path, _ in stub.bodies] == ["/generate"] * 2
    assert (first["output_tokens"], second["output_tokens"]) == (4, 3)
    assert (first["finish_reason"], first["error"]) == ("length", None)
    assert (first["rate"], first["ttft_slo_s"], first["priority"]) == (10.0, 1.5, None)
    assert (second["prompt_tokens"], second["requested_tokens"], second["priority"]) == (7, 3, 2)
    assert second["scheduled_s"] == 0.2 <= second["sent_s"]
    for row in (first, second):
        assert len(row["times"]) == row["output_tokens"]
        assert row["times"] == sorted(row["times"])
        assert row["sent_s"] < row["times"][0] <= row["times"][-1] <= row["ended_s"]
    assert run.info.source == "replay"
    assert run.info.time_scale == 1.0
    assert run.info.duration_s >= second["ended_s"]
    assert run.info.target["server"] == {"version": "1"}
    assert not run.info.interrupted
    assert run.info.send_lag_p99_s is not None


def test_an_open_loop_does_not_wait_for_answers(ask, on_stub, rows):
    requests = [ask(0.1 * number, output=40) for number in range(5)]
    _, run = on_stub(requests, gap_s=0.02)
    found = rows(run)
    # All were sent long before the first answer had ended.
    assert max(row["sent_s"] for row in found) < min(row["ended_s"] for row in found)


def test_open_sessions_do_not_wait_either(ask, on_stub, rows):
    requests = [
        ask(0.1 * turn, output=40, session="a", turn=turn, think_s=9.0) for turn in range(2)
    ]
    _, run = on_stub(requests, ReplayOptions(sessions=Sessions.open), gap_s=0.02)
    first, second = rows(run)
    assert second["scheduled_s"] == 0.1
    assert second["sent_s"] < first["ended_s"]


def test_a_closed_session_waits_for_the_answer_and_the_reader(ask, on_stub, rows):
    requests = [
        ask(0.0, prompt=20, output=5, session="a"),
        ask(0.0, prompt=50, output=5, session="a", turn=1, think_s=0.25),
        ask(0.0, prompt=40, output=5, session="a", turn=2, think_s=0.05),
    ]
    stub, run = on_stub(requests)
    found = rows(run)
    for earlier, later in itertools.pairwise(found):
        wait_s = requests[later["index"]].think_s
        assert later["scheduled_s"] == pytest.approx(earlier["ended_s"] + wait_s)
        assert later["sent_s"] >= later["scheduled_s"]
    first, second, third = (body["input_ids"] for _, body in stub.bodies)
    assert second[:25] == [*first, *range(100, 105)]  # the stub's answers count up from 100
    assert [len(first), len(second), len(third)] == [20, 50, 40]
    assert third[:20] != first  # not longer than the turn before: a prompt of its own


@pytest.mark.parametrize("token_ids", [True, False])
def test_completions_go_on_where_the_server_sends_ids(ask, on_stub, token_ids):
    requests = [ask(session="a"), ask(prompt=50, session="a", turn=1)]
    stub, _ = on_stub(requests, ReplayOptions(api=Api.completions), token_ids=token_ids)
    (_, first), (_, second) = stub.bodies
    assert first["return_token_ids"] is True
    assert "return_token_ids" not in second
    assert len(second["prompt"]) == 50
    assert second["prompt"][:20] == first["prompt"]
    assert (second["prompt"][20:25] == [*range(100, 105)]) is token_ids


def test_chats_go_on_with_the_answer(ask, on_stub):
    requests = [ask(session="a"), ask(prompt=50, session="a", turn=1)]
    stub, _ = on_stub(requests, ReplayOptions(api=Api.chat))
    first, second = (body["messages"] for _, body in stub.bodies[-2:])
    assert second[0] == first[0]
    assert second[1] == {"role": "assistant", "content": " t0 t1 t2 t3 t4"}
    assert len(second[2]["content"].split()) == 50 - 20 - 5


@pytest.fixture
def patient(monkeypatch):
    """A stream is given up only once it alone is left: on a busy machine all are silent at times.

    By then the two that are not of a session that has failed have brought seven tokens.
    """
    give_up = StreamClient.give_up_silent

    def alone(client, timeout_s):
        if client.tokens == 2 + 5 and len(client.running) == 1:
            give_up(client, timeout_s)

    monkeypatch.setattr(StreamClient, "give_up_silent", alone)


@pytest.mark.parametrize(
    ("failure", "words", "tokens"),
    [
        ("500", "HTTP 500: {", 0),
        ("400", "no 400", 0),
        ("break", "the stream broke off after 2 tokens: ", 2),
        ("garbage", "a chunk cannot be read", 2),
        ("boundless", "a chunk cannot be read (OverflowError", 2),
        ("nested", "a chunk cannot be read (RecursionError", 2),
        ("half", "[/INST] ? [x=1]", 2),
        ("error", "no memory", 2),
        ("abort", "aborted by the server: evicted", 2),
        ("unfinished", "ended after 4 tokens without a finish reason", 4),
        ("json", "without a finish reason (its content type is application/json)", 0),
        ("hang", "given up: no token came for 0.2 s", 2),
        ("comments", "given up: no token came for 0.2 s", 2),
    ],
)
def test_a_failing_request_is_a_record_and_the_others_go_on(
    ask, on_stub, rows, patient, failure, words, tokens
):
    requests = [
        ask(0.00, session="a"),
        ask(0.05),
        ask(0.06, session="a", turn=1),
        ask(0.07, session="a", turn=2),
    ]
    options = ReplayOptions(timeout_s=0.2 if failure in ("hang", "comments") else 60.0)
    _, run = on_stub(requests, options, failures={0: failure})
    bad, good, second, third = rows(run)
    assert words in bad["error"]
    assert (bad["output_tokens"], len(bad["times"])) == (tokens, tokens)
    assert bad["ended_s"] is not None
    assert bad["finish_reason"] == ("abort" if failure == "abort" else None)
    assert (good["error"], good["output_tokens"]) == (None, 5)
    for row in (second, third):
        assert row["error"] == "not sent: turn 0 of session a failed"
        assert (row["sent_s"], row["ended_s"], row["scheduled_s"]) == (None, None, None)


def test_a_slow_server_is_no_failure(ask, on_stub, rows):
    _, run = on_stub([ask(output=3)], gap_s=0.3, first_s=0.3)
    (row,) = rows(run)
    assert row["error"] is None
    assert row["times"][0] - row["sent_s"] >= 0.3


def test_dilated_time_is_sent_stretched_and_recorded_in_the_traces_seconds(ask, on_stub, rows):
    """With a dilation of 4 the trace's 0.1 s are 0.4 s of the wall, and the other way round."""
    posted, began, answered = [], [], []

    def note(snapshot, wall_s):
        posted.append((snapshot.time_s, wall_s))
        began.append(time.monotonic() - wall_s)

    def note_end(index, _answer):
        answered.append(time.monotonic())

    requests = [ask(0.0, output=3, session="a"), ask(0.0, session="a", turn=1, think_s=0.1)]
    hooks = {"observe": note, "answered": note_end}
    _, run = on_stub(requests, gap_s=0.08, first_s=0.4, server_info=EMULATED, how=lambda _: hooks)
    first, second = rows(run)
    assert run.info.time_scale == 4.0
    assert run.info.target["emulated_device"]["device"] == "h200"
    assert first["times"][0] - first["sent_s"] >= 0.1  # 0.4 s of the wall
    # No later than it was known here, however slow all this is.
    assert first["ended_s"] <= (answered[0] - min(began)) / 4.0 + 0.01
    assert second["scheduled_s"] == pytest.approx(first["ended_s"] + 0.1)
    time_s, wall_s = posted[-1]
    assert run.info.duration_s == pytest.approx(wall_s / 4.0)
    assert time_s >= run.info.duration_s


def test_rates_are_sent_as_they_are_on_a_dilated_clock(ask, on_stub):
    stub, run = on_stub([ask(rate=12.0)], server_info=EMULATED)
    params = stub.bodies[0][1]["sampling_params"]["custom_params"]
    assert params == {"tokenflow_rate": 12.0}
    assert run.requests["rate"].to_pylist() == [12.0]


def test_a_device_that_was_late_makes_the_run_invalid(ask, on_stub):
    behaviour = {"server_info": EMULATED, "steps_per_request": 50, "late_per_request": 1}
    _, run = on_stub([ask()], **behaviour)
    assert any("late in 1 of 50 steps" in reason for reason in run.info.invalid)


def busy(snapshot, wall_s):
    """A client that does something else for longer than may be."""
    time.sleep(0.15)


@pytest.mark.parametrize("emulated", [True, False])
def test_only_an_emulated_servers_http_process_is_probed(ask, on_stub, emulated):
    stop = asyncio.Event()

    def until_probed(stub):
        def observe(_snapshot, wall_s):
            # A real server has time for two probes; one that is emulated, for the first.
            if wall_s > (60.0 if emulated else 2.5) or stub.asked.count("/model_info") > 1:
                stop.set()

        return {"observe": observe, "stop": stop}

    info = EMULATED if emulated else {}
    stub, _ = on_stub([ask(output=100_000)], server_info=info, how=until_probed)
    # One GET of /model_info when the replay starts, and one each second if it is emulated.
    assert (stub.asked.count("/model_info") > 1) is emulated


def test_late_sending_makes_the_run_invalid(ask, on_stub):
    requests = [ask(0.01 * number, output=2) for number in range(15)]
    _, run = on_stub(requests, how=lambda _: {"observe": busy})
    assert run.info.send_lag_p99_s > 0.05
    assert any("requests were sent" in reason for reason in run.info.invalid)
    assert any("event loop" in reason for reason in run.info.invalid)


def test_warm_up_is_flagged_by_number_or_time(ask, on_stub):
    requests = [ask(0.1 * number) for number in range(4)]
    _, run = on_stub(requests, ReplayOptions(warm_up_requests=1))
    assert run.requests["warm_up"].to_pylist() == [True, False, False, False]
    _, run = on_stub(requests, ReplayOptions(warm_up_s=0.15))
    assert run.requests["warm_up"].to_pylist() == [True, True, False, False]


def test_a_session_is_warm_up_from_its_beginning_however_long_an_answer_takes(ask, on_stub):
    """Two servers are asked the same, so the same is left out of both runs."""
    requests = [ask(0.0, session="a", output=9), ask(0.2), ask(0.3, session="a", turn=1)]
    for first_s in (0.01, 0.5):
        _, run = on_stub(requests, ReplayOptions(warm_up_s=0.15), first_s=first_s)
        assert run.requests["warm_up"].to_pylist() == [True, False, True]


def test_a_turn_that_is_never_sent_is_warm_up_with_its_session(ask, on_stub):
    requests = [ask(0.0, session="a"), ask(0.1), ask(0.1, session="a", turn=1), ask(0.2)]
    _, run = on_stub(requests, ReplayOptions(warm_up_requests=3), failures={0: "500"})
    assert run.requests["error"].to_pylist()[2] == "not sent: turn 0 of session a failed"
    assert run.requests["warm_up"].to_pylist() == [True, True, True, False]


def test_what_a_server_says_is_no_markup_and_warm_up_fails_uncounted(ask, on_stub):
    requests = [ask(0.1 * number) for number in range(4)]
    failures = {0: "500", 2: "half"}
    _, run = on_stub(requests, ReplayOptions(warm_up_requests=1), failures=failures)
    console = Console(width=200, record=True)
    console.print(summary_table(run))
    shown = " ".join(console.export_text().split())
    assert "failures 1 1 x [/INST] ? [x=1]" in shown


def test_the_burst_comes_before_the_clock_and_is_not_recorded(ask, on_stub, rows):
    requests = [ask(prompt=30, output=40), ask(0.05, prompt=40), ask(0.1)]
    stub, run = on_stub(requests, ReplayOptions(warm_up_burst=2), gap_s=0.05)
    asked = [
        (len(body["input_ids"]), body["sampling_params"]["max_new_tokens"])
        for _, body in stub.bodies
    ]
    assert sorted(asked[:2]) == [(30, 32), (40, 5)]
    assert sorted(asked[2:]) == [(20, 5), (30, 40), (40, 5)]
    prompts = [body["input_ids"] for _, body in stub.bodies]
    assert not any(prompt in prompts[2:] for prompt in prompts[:2])
    found = rows(run)
    assert [row["output_tokens"] for row in found] == [40, 5, 5]
    assert found[0]["sent_s"] < 32 * 0.05  # the burst took longer: the clock began after it
    assert run.tokens.num_rows == 50


def test_a_failing_burst_is_said(ask, on_stub):
    with pytest.raises(ReplayError, match="the warm-up burst failed: HTTP 500"):
        on_stub([ask()], ReplayOptions(warm_up_burst=1), failures={0: "500"})


def test_a_silent_burst_is_given_up(ask, on_stub):
    options = ReplayOptions(warm_up_burst=1, timeout_s=0.2)
    with pytest.raises(ReplayError, match=r"burst failed: given up: no token came for 0\.2 s"):
        on_stub([ask()], options, failures={0: "hang"})


def test_a_burst_can_be_stopped(ask, on_stub):
    stop = asyncio.Event()
    stop.set()
    with pytest.raises(ReplayError, match="stopped in the warm-up burst: nothing was measured"):
        on_stub(
            [ask()],
            ReplayOptions(warm_up_burst=1),
            failures={0: "hang"},
            how=lambda _: {"stop": stop},
        )


def test_changes_of_priority_are_noted_as_not_sent(ask, on_stub):
    updates = (PriorityUpdate(1.0, 0, 5),)
    _, run = on_stub([ask(priority=1)], ReplayOptions(send_priority=True), updates=updates)
    assert any("1 changes of priority were not sent" in each for each in run.info.target["notes"])


def test_stopping_cuts_off_what_runs_and_keeps_what_came(ask, on_stub, rows):
    stop = asyncio.Event()
    tokens = before_s = 0.0

    def observe(snapshot, wall_s):
        nonlocal tokens, before_s
        tokens += snapshot.tokens_per_s * (snapshot.time_s - before_s)
        before_s = snapshot.time_s
        if snapshot.finished and tokens > 10:
            stop.set()

    requests = [ask(output=3), ask(output=10_000), ask(3600.0)]
    _, run = on_stub(requests, how=lambda _: {"observe": observe, "stop": stop})
    done, cut, never = rows(run)
    assert run.info.interrupted
    assert (done["finish_reason"], done["output_tokens"]) == ("length", 3)
    assert cut["output_tokens"] == len(cut["times"]) > 3
    assert (cut["ended_s"], cut["finish_reason"], cut["error"]) == (None, None, None)
    assert (never["sent_s"], never["error"]) == (None, None)
    assert 0.4 < run.info.duration_s < 600


def test_nothing_starts_without_rates_or_token_ids(ask, on_stub):
    with pytest.raises(ReplayError, match=r"states no rate for 1 of its 2 requests.*--rate"):
        on_stub([ask(), ask(rate=None)])
    with pytest.raises(ReplayError, match=r"token ids.*--token-ids LO:HI"):
        on_stub([ask()], vocabulary=None)
    with pytest.raises(ReplayError, match="trace small has no requests"):
        on_stub([])


def test_urls_are_checked(ask, trace_of):
    from tokenflow_sgl.lab.replay import Target, replay

    for url in ("localhost:30000", "ftp://host", "http://"):
        with pytest.raises(ReplayError, match="allowed is http://HOST"):
            asyncio.run(replay(trace_of(ask()), Target(url), ReplayOptions(token_ids=(0, 9))))


def test_a_run_is_written_and_read_as_it_was(ask, on_stub, tmp_path):
    _, run = on_stub([ask(), ask(output=1)], server_info=EMULATED)
    write_run(tmp_path / "run", run)
    again = read_run(tmp_path / "run")
    assert again.requests.equals(run.requests)
    assert again.tokens.equals(run.tokens)
    assert json.loads(json.dumps(again.info.target)) == again.info.target
    assert again.info.options["api"] == "generate"


def test_hundreds_of_streams_lose_nothing(ask, trace_of, stub_process):
    """The functional half of benchmarks/replay_client.py: 300 streams from another process."""
    from tokenflow_sgl.lab.replay import find_target, replay

    requests = [ask(0.002 * number, prompt=8, output=60 + number % 7) for number in range(300)]

    async def main(url):
        return await replay(trace_of(*requests), await find_target(url), KNOWN)

    with stub_process(gap_s=0.02, jitter=True) as url:
        run = asyncio.run(main(url))
    assert run.requests["error"].null_count == 300
    wanted = [request.output_tokens for request in requests]
    assert run.requests["output_tokens"].to_pylist() == wanted
    owners = run.tokens["request"].to_numpy()
    times = run.tokens["time_s"].to_numpy()
    assert [int((owners == index).sum()) for index in range(300)] == wanted
    assert (owners[1:] >= owners[:-1]).all()
    assert ((times[1:] >= times[:-1]) | (owners[1:] > owners[:-1])).all()
