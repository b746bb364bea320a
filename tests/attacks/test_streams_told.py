"""POST and DELETE /tokenflow/streams on a real server: other rates, readers that look away."""

from __future__ import annotations

import http.client
import json
import threading
import time

import pytest
from servers.tuned import CHECK_RANKS, tuned
from told_streams import Reading, told

from tokenflow_sgl.engine.sglang.version import at_least

pytestmark = pytest.mark.engine

WORKERS_SERVED = pytest.mark.skipif(
    not at_least("0.5.23"), reason="refused there: workers serve SGLang's own application"
)
HELD_FROM_2 = {"tokenflow_passed_on:mine": 2}
FAR = 10_000
"""Tokens that no test waits for: a slow client still finds the stream running."""
ROOM = ("--max-total-tokens", "40000")


@pytest.fixture(scope="module", params=["1", pytest.param("2", marks=pytest.mark.slow)])
def served(start, request):
    flags = ("--scheduler", "tokenflow", *ROOM)
    ranks = ("--tp-size", request.param, CHECK_RANKS)
    with start(*flags, *(ranks if request.param != "1" else ())) as running:
        yield running


def test_a_stream_rests_on_an_idle_server_and_goes_on(served, prompts, reference) -> None:
    stream = Reading(served, prompts[0], FAR)
    stream.wait_for(8)
    assert told(served, stream.rid, {"rate": 0}) == (204, "")
    assert stream.stands() >= 8
    assert served.total("tokenflow:preemptions_total") > 0
    assert told(served, stream.rid, {"rate": 1000}) == (204, "")
    stream.ends_after(reference[0])
    served.assert_clean()


def test_a_reader_that_comes_back_with_text_left_does_not_stall(served, prompts, reference) -> None:
    stream = Reading(served, prompts[0], FAR, rate=0.1)  # each token lasts for ten seconds
    stream.wait_for(8)
    # Once a buffer has been looked at, the stalls of streams before this one have been counted.
    served.wait_for("buffer_seconds_count", served.total("tokenflow:buffer_seconds_count") + 1)
    before = served.total("tokenflow:stall_seconds_total")
    assert told(served, stream.rid, {"rate": 0}) == (204, "")
    stood = stream.stands()
    looks = served.total("tokenflow:buffer_seconds_count")
    assert told(served, stream.rid, {"rate": 0.1}) == (204, "")
    stream.wait_for(stood + 1)
    served.wait_for("buffer_seconds_count", looks + 2)
    assert served.total("tokenflow:stall_seconds_total") == before
    # The control: no server makes a thousand tokens per second of one stream.
    assert told(served, stream.rid, {"rate": 1000}) == (204, "")
    end = time.monotonic() + 60.0
    while served.total("tokenflow:stall_seconds_total") == before:
        assert time.monotonic() < end, "no stall is counted"
        time.sleep(0.1)
    stream.ends_after(reference[0])
    served.assert_clean()


def test_others_are_served_meanwhile(served, prompts, reference) -> None:
    resting = Reading(served, prompts[1], FAR)
    resting.wait_for(4)
    told(served, resting.rid, {"rate": 0})
    stood = resting.stands()
    others = served.outputs(prompts[2:6], stream=True)
    assert others == reference[2:6]
    assert len(resting.ids) == stood
    told(served, resting.rid, {"rate": 20})
    resting.ends_after(reference[1])
    served.assert_clean()


def test_a_newcomer_may_rest_before_its_first_token(served, prompts, reference) -> None:
    """Its prefill may have begun: then it rests behind its first tokens."""
    stream = Reading(served, prompts[2], FAR)
    status = 0
    end = time.monotonic() + 60.0
    while status != 204 and time.monotonic() < end:
        status, _ = told(served, stream.rid, {"rate": 0})
    stream.stands()
    told(served, stream.rid, {"rate": 10})
    stream.ends_after(reference[2])


@pytest.mark.parametrize("how", ["disconnect", "delete", "abort"])
def test_a_resting_stream_that_ends_leaves_nothing(served, prompts, how) -> None:
    stream = Reading(served, prompts[3], FAR)
    stream.wait_for(4)
    told(served, stream.rid, {"rate": 0})
    stream.stands()
    if how == "disconnect":
        stream.leave()
    elif how == "abort":
        assert served.post("/abort_request", {"rid": stream.rid}).status == 200
    else:
        assert told(served, stream.rid, "", "DELETE") == (204, "")
    stream.join(60)
    if how != "disconnect":
        assert stream.reason["type"] == "abort"
    served.assert_clean()
    end = time.monotonic() + 60.0
    # The HTTP server may hear of it later than the scheduler.
    while (status := told(served, stream.rid, {"rate": 5})[0]) == 409 and time.monotonic() < end:
        time.sleep(0.1)
    assert status == 404


@pytest.mark.slow
def test_all_rest_and_the_engine_is_paused(served, prompts, reference) -> None:
    streams = [Reading(served, prompt, FAR) for prompt in prompts[:3]]
    for stream in streams:
        stream.wait_for(4)
        told(served, stream.rid, {"rate": 0})
    assert served.post("/pause_generation", {"mode": "retract"}).status == 200
    assert told(served, streams[0].rid, {"rate": 50}) == (204, "")
    assert served.post("/continue_generation", {}).status == 200
    streams[0].ends_after(reference[0])
    for stream, answer in zip(streams[1:], reference[1:3], strict=True):
        stream.stands()
        told(served, stream.rid, {"rate": 50})
        stream.ends_after(answer)
    served.assert_clean()


def test_what_is_wrong_is_named(served, prompts) -> None:
    stream = Reading(served, prompts[4], FAR)
    stream.wait_for(1)
    wrong = {
        "between 0.1 and 1000": {"rate": 5000},
        "rate is 'fast'": {"rate": "fast"},
        "rate is True": {"rate": True},
        "rate is -1": {"rate": -1},
        "'speed' is unknown": {"speed": 5},
        "rate is missing": {},
        "weight is 11; it must be a number between 0.1 and 10": {"weight": 11},
        "weight is 'much'": {"rate": 20, "weight": "much"},
        "must be a JSON object": [1],
        "no JSON": "{",
    }
    for sentence, body in wrong.items():
        status, said = told(served, stream.rid, body)
        assert status == 400 and sentence in said, (status, said)
    status, said = told(served, "unknown", {"rate": 5})
    assert status == 404 and "'unknown'" in said
    assert told(served, "unknown", "", "DELETE")[0] == 404
    assert told(served, stream.rid, "", "DELETE")[0] == 204
    stream.join(60)


def test_no_other_stream_is_ended_by_the_beginning_of_its_id(served, prompts) -> None:
    one = Reading(served, prompts[5], FAR, rid="alike")
    other = Reading(served, prompts[6], FAR, rid="alike-too")
    one.wait_for(1)
    other.wait_for(1)
    status, said = told(served, "alike", "", "DELETE")
    assert status == 409 and "another stream's id begins like it" in said
    assert told(served, "alike-too", "", "DELETE")[0] == 204
    other.join(60)
    assert told(served, "alike", "", "DELETE")[0] == 204
    one.join(60)
    assert (one.reason["type"], other.reason["type"]) == ("abort", "abort")


def test_a_request_without_a_reader_has_no_rate(served, prompts) -> None:
    asking = threading.Thread(
        target=lambda: served.generate(prompts[7], rid="silent", max_new_tokens=FAR)
    )
    asking.start()
    end = time.monotonic() + 60.0
    while (answer := told(served, "silent", {"rate": 5}))[0] == 404 and time.monotonic() < end:
        time.sleep(0.01)
    assert answer[0] == 400 and "does not stream" in answer[1]
    assert told(served, "silent", "", "DELETE")[0] == 204
    asking.join(60)


def test_an_operator_cannot_break_it(served, prompts, reference) -> None:
    stream = Reading(served, prompts[8], FAR, rid="mine")
    stream.wait_for(1)
    wrong = (
        {"tokenflow_rate:mine": -5},
        {"tokenflow_weight:mine": 0},
        {"tokenflow_": 1},
        {"tokenflow_passed_on:mine": 1 << 63},
    )
    for said in (HELD_FROM_2, *wrong):
        answer = served.post("/set_internal_state", {"server_args": said})
        assert answer.body == [said == HELD_FROM_2], answer
    # SGLang's own still work.
    plain = {"server_args": {"pp_max_micro_batch_size": 8}}
    assert served.post("/set_internal_state", plain).body == [True]
    stream.ends_after(reference[8])
    served.assert_clean()


def test_a_weight_is_in_the_next_state_of_the_policy_on_all_ranks(start, prompts, tmp_path) -> None:
    ranks = ("--tp-size", "2", CHECK_RANKS)
    policy = ("--scheduler", "tokenflow", "--tokenflow-policy", "weights_seen:WeightsSeen")
    with start(*policy, *ranks, env={"TOKENFLOW_TEST_WEIGHTS": str(tmp_path)}) as served:
        weighty = Reading(served, prompts[0], FAR)
        weighty.wait_for(4)
        plain = Reading(served, prompts[1], FAR)
        plain.wait_for(4)
        assert told(served, weighty.rid, {"weight": 4}) == (204, "")
        assert told(served, weighty.rid, {"rate": 20, "weight": 0.5}) == (204, "")
        assert told(served, weighty.rid, {"weight": 1}) == (204, "")
        for stream in (weighty, plain):
            assert told(served, stream.rid, "", "DELETE") == (204, "")
            stream.join(60)
        served.assert_clean()
    seen = [json.loads(each.read_text()) for each in tmp_path.iterdir()]
    # As the policy saw them, one after the other: all alike, then as told, and alike again.
    assert seen == [[None, [4.0, 1.0], [0.5, 1.0], None]] * 2


@pytest.mark.slow
def test_a_rest_does_not_last_for_ever(start, prompts, reference) -> None:
    longest = 3.0
    flags = ("--scheduler", "tokenflow", *ROOM, *tuned(longest_rest=longest))
    with start(*flags) as served:
        stream = Reading(served, prompts[0], FAR)
        stream.wait_for(8)
        began = time.monotonic()
        assert told(served, stream.rid, {"rate": 0}) == (204, "")
        served.wait_for("preemptions_total", 1)
        served.wait_for("resumes_total", 1)
        # Whatever is slow makes it longer, and nothing makes it shorter.
        assert time.monotonic() - began >= longest
        stream.ends_after(reference[0])
        served.assert_clean()


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    # SGLang takes no --api-key with several workers.
    [
        pytest.param(("--api-key", "reader"), id="one worker"),
        pytest.param(("--tokenizer-worker-num", "2"), id="two workers", marks=WORKERS_SERVED),
    ],
)
def test_keys_guard_the_streams_as_they_guard_aborts(start, prompts, flags) -> None:
    with start("--scheduler", "tokenflow", "--admin-api-key", "boss", *flags) as guarded:
        # Often enough that each of the workers gets some.
        for key, status in 8 * ((None, 401), ("reader", 401), ("boss", 404)):
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            for method, body in (("POST", {"rate": 0}), ("DELETE", "")):
                connection = http.client.HTTPConnection("127.0.0.1", guarded.server.port)
                raw = body if isinstance(body, str) else json.dumps(body)
                connection.request(method, "/tokenflow/streams/any", raw, headers)
                assert connection.getresponse().status == status, (key, method)
                connection.close()
