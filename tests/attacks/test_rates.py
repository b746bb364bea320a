"""A rate that nothing would read is refused with HTTP 400, wherever it stands."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.engine

OPENAI = {
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
}
BAD = {
    "nearest key is tokenflow_rate": {"tokenflow_rte": 20},
    "nearest key is tokenflow_class": {"tokenflow-clas": "agent"},
    "exclude each other": {"tokenflow_rate": 20, "tokenflow_class": "agent"},
}


@pytest.fixture(scope="module")
def served(start):
    with start("--scheduler", "tokenflow") as running:
        yield running


def refused(answer, sentence: str) -> None:
    assert answer.status == 400, answer
    assert sentence in json.dumps(answer.body)


@pytest.mark.parametrize("stream", [False, True])
def test_keys_that_nothing_reads_get_http_400(served, stream) -> None:
    for sentence, params in BAD.items():
        sampling = {"max_new_tokens": 2, "custom_params": params}
        body = {"input_ids": [5, 6], "sampling_params": sampling, "stream": stream}
        refused(served.post("/generate", body), sentence)
        for path, asked in OPENAI.items():
            body = {"model": "tiny", "max_tokens": 2, "stream": stream, **asked}
            refused(served.post(path, {**body, "custom_params": params}), sentence)


@pytest.mark.parametrize("stream", [False, True])
def test_the_right_key_in_the_wrong_place_gets_http_400(served, stream) -> None:
    rate, sentence = {"tokenflow_rate": 20}, "give tokenflow_rate in custom_params"
    plain = {"input_ids": [5, 6], "stream": stream}
    short = {"max_new_tokens": 2}
    refused(served.post("/generate", {**plain, **rate, "sampling_params": short}), sentence)
    # SGLang's own refusal of parameters that it does not know.
    refused(served.post("/generate", {**plain, "sampling_params": {**short, **rate}}), *rate)
    for path, asked in OPENAI.items():
        body = {"model": "tiny", "max_tokens": 2, "stream": stream, **asked}
        refused(served.post(path, {**body, **rate}), sentence)
        refused(served.post(path, {**body, "metadata": rate}), sentence)


def test_one_bad_request_turns_a_batch_away(served) -> None:
    sampling = [
        {"max_new_tokens": 2, "custom_params": params}
        for params in ({"tokenflow_rate": 20}, {"tokenflow_rte": 20})
    ]
    body = {"input_ids": [[5, 6], [7, 8]], "sampling_params": sampling}
    refused(served.post("/generate", body), "nearest key is tokenflow_rate")


def test_everything_else_is_served(served) -> None:
    params = {"tokenflow_rate": 20, "mine": 1}
    sampling = {"max_new_tokens": 2, "custom_params": params}
    body = {"input_ids": [5, 6], "sampling_params": sampling}
    assert served.post("/generate", body).status == 200
    for path, asked in OPENAI.items():
        body = {"model": "tiny", "max_tokens": 2, "metadata": {"team": "a"}, **asked}
        assert served.post(path, {**body, "custom_params": params, "other": 1}).status == 200
    served.assert_clean()
