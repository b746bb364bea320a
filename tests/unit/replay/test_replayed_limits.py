"""What a replay tells the server of an answer's length, and what ends the answers."""

import pytest

from tokenflow_sgl.choices import Api
from tokenflow_sgl.lab.replay import ReplayOptions
from tokenflow_sgl.lab.traces.output_limits import DEFAULT_LIMIT, REASONING_LIMIT

EMULATED = {
    "internal_states": [
        {"emulated_device": {"device": "toy", "time_dilation": 1.0, "steps": 0, "late_steps": 0}}
    ]
}
FAST = {"tokens_per_chunk": 100, "gap_s": 0.002}


def sent(stub, path="/generate"):
    """Limit and wanted length of each request, as they came: mostly in the trace's order."""
    bodies = [body.get("sampling_params", body) for where, body in stub.bodies if where == path]
    return [
        (
            body.get("max_new_tokens", body.get("max_tokens")),
            body.get("custom_params", {}).get("emulated_output_tokens"),
        )
        for body in bodies
    ]


def test_an_emulated_device_learns_the_length_and_the_scheduler_the_limit(ask, on_stub, rows):
    requests = [
        ask(0.0, output=7),
        ask(0.05, output=9, limit_tokens=300),
        ask(0.1, output=8, reasoning_tokens=6),
    ]
    stub, run = on_stub(requests, known_lengths=False, server_info=EMULATED)
    # One limit for all that state none: two would tell which of them think.
    assert sorted(sent(stub)) == sorted([(REASONING_LIMIT, 7), (300, 9), (REASONING_LIMIT, 8)])
    ended = [(row["output_tokens"], row["finish_reason"], row["error"]) for row in rows(run)]
    assert ended == [(7, "stop", None), (9, "stop", None), (8, "stop", None)]
    assert run.info.options["known_lengths"] is False
    assert not any("another length" in note for note in run.info.target["notes"])
    assert any("which the server did not know" in note for note in run.info.target["notes"])


def test_known_lengths_are_sent_as_limits_and_nothing_else(ask, on_stub, rows):
    stub, run = on_stub([ask(output=7, limit_tokens=300)], server_info=EMULATED)
    assert sent(stub) == [(7, None)]
    assert rows(run)[0]["finish_reason"] == "length"
    assert run.info.options["known_lengths"] is True
    assert any("knew when each answer would end" in note for note in run.info.target["notes"])


def test_a_real_model_ends_its_answers_itself_and_that_is_no_failure(ask, on_stub, rows):
    requests = [ask(0.0, output=7), ask(0.05, output=20), ask(0.1, output=50)]
    stub, run = on_stub(requests, known_lengths=False, stop_after=20, **FAST)
    assert sent(stub) == [(DEFAULT_LIMIT, None)] * 3
    ended = [(row["output_tokens"], row["finish_reason"], row["error"]) for row in rows(run)]
    assert ended == [(20, "stop", None)] * 3
    assert not any("served" in reason for reason in run.info.invalid)
    (note,) = [note for note in run.info.target["notes"] if "another length" in note]
    assert "2 of 3 had another length than in the trace" in note


@pytest.mark.parametrize(
    ("context", "limit"), [(5000, DEFAULT_LIMIT), (1000, 980), (24, 7), (None, DEFAULT_LIMIT)]
)
def test_a_limit_is_cut_to_the_servers_context(ask, on_stub, context, limit):
    stub, _ = on_stub([ask(output=7)], known_lengths=False, server_info=EMULATED, context=context)
    assert sent(stub) == [(limit, 7)]


def test_a_chat_prompt_may_be_longer_than_it_was_estimated(ask, on_stub):
    stub, _ = on_stub(
        [ask(prompt=200, output=7)],
        ReplayOptions(api=Api.chat),
        known_lengths=False,
        server_info=EMULATED,
        context=1000,
    )
    assert sent(stub, "/v1/chat/completions")[-1] == (780, 7)


@pytest.mark.parametrize("length", [7, 70])
def test_the_warm_up_burst_is_cut_short(ask, on_stub, length):
    """Answers that ended there would teach the server that all are as short."""
    stub, _ = on_stub(
        [ask(output=length)],
        ReplayOptions(warm_up_burst=1),
        known_lengths=False,
        server_info=EMULATED,
    )
    assert sent(stub) == [(32, length), (DEFAULT_LIMIT, length)]
