"""What each endpoint is asked, and how the tokens of its answers are counted."""

import itertools

import pytest

from tokenflow_sgl.choices import Api
from tokenflow_sgl.lab.replay import ReplayOptions
from tokenflow_sgl.lab.traces.request import PrefixBlock


def test_what_generate_is_asked(ask, on_stub):
    stub, _ = on_stub([ask(rate=12.5, priority=3)])
    ((_, body),) = stub.bodies
    ids = body.pop("input_ids")
    assert len(ids) == 20
    assert all(100 <= token < 900 for token in ids)  # the middle of the stub's 1,000
    assert body == {
        "sampling_params": {
            "max_new_tokens": 5,
            "temperature": 0.0,
            "custom_params": {"tokenflow_rate": 12.5},
        },
        "stream": True,
    }


def test_a_class_is_named_instead_of_its_rate(ask, on_stub):
    stub, run = on_stub([ask(rate=5.0, qos_class="voice"), ask(rate=5.0)])
    params = [body["sampling_params"]["custom_params"] for _, body in stub.bodies]
    assert sorted(map(str, params)) == ["{'tokenflow_class': 'voice'}", "{'tokenflow_rate': 5.0}"]
    assert run.requests["qos_class"].to_pylist() == ["voice", None]
    stub, _ = on_stub(
        [ask(rate=5.0, qos_class="voice", deadline_s=9.0)], ReplayOptions(send_rates=False)
    )
    assert "custom_params" not in stub.bodies[0][1]["sampling_params"]


def test_deadlines_are_told(ask, on_stub):
    stub, _ = on_stub([ask(deadline_s=20.0, rate=5.0), ask(rate=6.0)])
    params = [body["sampling_params"]["custom_params"] for _, body in stub.bodies]
    told = {"tokenflow_rate": 5.0, "tokenflow_deadline": 20.0}
    assert sorted(params, key=len) == [{"tokenflow_rate": 6.0}, told]


def test_what_is_sent_can_be_chosen(ask, on_stub):
    options = ReplayOptions(
        token_ids=(5, 6),
        send_rates=False,
        send_priority=True,
        known_lengths=True,
        ignore_eos=True,
        temperature=0.7,
    )
    stub, _ = on_stub([ask(prompt=3, rate=12.5, priority=3)], options, vocabulary=None)
    assert stub.bodies[0][1] == {
        "input_ids": [5, 5, 5],
        "sampling_params": {"max_new_tokens": 5, "temperature": 0.7, "ignore_eos": True},
        "stream": True,
        "priority": 3,
    }


def test_a_decode_server_alone_is_told_that_there_is_no_prefill_server(ask, on_stub):
    decodes = {"disaggregation_mode": "decode", "disaggregation_transfer_backend": "fake"}
    stub, _ = on_stub([ask()], server_info=decodes)
    assert stub.bodies[0][1]["bootstrap_host"] == "2.2.2.2"
    stub, _ = on_stub([ask()], server_info={**decodes, "disaggregation_mode": "null"})
    assert "bootstrap_host" not in stub.bodies[0][1]


def test_equal_seeds_send_equal_prompts(ask, on_stub):
    blocks = (PrefixBlock(3, 8),)
    requests = [ask(prefix=blocks), ask(prompt=30, prefix=blocks)]

    def prompts(seed):
        stub, _ = on_stub(requests, ReplayOptions(seed=seed))
        return sorted((body["input_ids"] for _, body in stub.bodies), key=len)

    one, again, other = prompts(1), prompts(1), prompts(2)
    assert one == again != other
    assert one[0][:8] == one[1][:8]
    assert one[0][8:] != one[1][8:20]


@pytest.mark.parametrize("cumulative", [False, True])
@pytest.mark.parametrize("per_chunk", [1, 3])
def test_chunks_may_be_cumulative_and_bring_several_tokens(
    ask, on_stub, rows, cumulative, per_chunk
):
    _, run = on_stub([ask(output=7)], cumulative=cumulative, tokens_per_chunk=per_chunk)
    (row,) = rows(run)
    assert row["output_tokens"] == len(row["times"]) == 7
    # All tokens of a chunk come at once, and with those of another one only on a busy machine.
    together = [len(list(group)) for _, group in itertools.groupby(row["times"])]
    assert len(together) > 1
    assert all(tokens % per_chunk == 0 for tokens in together[:-1])


def test_completions_are_counted_by_usage(ask, on_stub, rows):
    stub, run = on_stub(
        [ask(output=6)],
        ReplayOptions(api=Api.completions),
        tokens_per_chunk=2,
        stop_after=5,
        server_info={},
    )
    path, body = stub.bodies[0]
    assert path == "/v1/completions"
    assert len(body.pop("prompt")) == 20
    assert body == {
        "model": "tiny",
        "max_tokens": 6,
        "temperature": 0.0,
        "custom_params": {"tokenflow_rate": 10.0},
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    (row,) = rows(run)
    assert (row["output_tokens"], row["finish_reason"], row["error"]) == (5, "stop", None)
    assert 1 < len(set(row["times"])) <= 3


def test_chat_is_counted_by_usage_and_its_prompts_by_the_server(ask, on_stub, rows):
    stub, run = on_stub(
        [ask(prompt=200, output=4)],
        ReplayOptions(api=Api.chat),
        prompt_factor=1.25,
        template_tokens=9,
    )
    path, body = stub.bodies[-1]  # after the two that measure the words
    assert path == "/v1/chat/completions"
    assert body["max_tokens"] == 4
    assert [message["role"] for message in body["messages"]] == ["user"]
    (row,) = rows(run)
    assert row["prompt_tokens"] == pytest.approx(200, abs=1)
    assert (row["output_tokens"], row["finish_reason"]) == (4, "length")
    assert not any("chunks" in note for note in run.info.target["notes"])
