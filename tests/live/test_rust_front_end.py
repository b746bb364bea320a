"""Behind SGLang's front end in Rust: rates reach the scheduler, and bad ones hurt nothing.

That pauses change no token there, rows of `identity.table` prove ("front end in Rust").
"""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from tokenflow_sgl.engine.sglang.version import at_least
from tokenflow_sgl.engine.unsupported_front_ends import OFF_IN_RUST, RUST

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not at_least("0.5.23"), reason="refused there: it was not tried"),
]

CHAT: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 8,
    "messages": [{"role": "user", "content": "Hello"}],
}
RATE_RANGE = "it must be between 0.1 and 1000 tokens per second."
NUMBER = "it must be a number of tokens per second between 0.1 and 1000."
BAD: dict[str, tuple[str, str]] = {
    "text": ('{"tokenflow_rate": "fast"}', f"tokenflow_rate is 'fast'; {NUMBER}"),
    "negative": ('{"tokenflow_rate": -1}', f"tokenflow_rate is -1; {RATE_RANGE}"),
    "large": ('{"tokenflow_rate": 1e308}', f"tokenflow_rate is 1e+308; {RATE_RANGE}"),
    "a large integer": (f'{{"tokenflow_rate": {2**64 - 1}}}', RATE_RANGE),
    "no float": (f'{{"tokenflow_rate": {10**30}}}', RATE_RANGE),
    "nothing": ('{"tokenflow_rate": null}', f"tokenflow_rate is None; {NUMBER}"),
    "yes": ('{"tokenflow_rate": true}', f"tokenflow_rate is True; {NUMBER}"),
    "a list": (f'{{"tokenflow_rate": {[*range(100_000)]}}}', NUMBER),
    "an object": ('{"tokenflow_rate": {"rate": 5}}', NUMBER),
    "said twice": ('{"tokenflow_rate": 5, "tokenflow_rate": "x"}', NUMBER),
    "both": ('{"tokenflow_rate": 5, "tokenflow_class": "agent"}', "exclude each other"),
    "class": ('{"tokenflow_class": "skim"}', "known classes are agent, listening, reading."),
    "a class that is a list": ('{"tokenflow_class": ["agent"]}', "known classes are agent"),
    "objective": ('{"tokenflow_ttft_slo": 0}', "it must be a number of seconds between 0.001"),
    "switch": ('{"tokenflow_deposit": 1}', "tokenflow_deposit is 1; it must be true or false."),
    "key": ('{"tokenflow_rte": 5}', "the nearest key is tokenflow_rate."),
    "spelling": ('{"TokenFlow-Rate": 5}', "the nearest key is tokenflow_rate."),
    "a long key": (f'{{"tokenflow_{"x" * 100_000}": 5}}', "is unknown; the nearest key is"),
}
"""What the scheduler refuses: `custom_params` as JSON, and what the sentence has."""
UNREAD = ('{"tokenflow_rate": NaN}', '{"tokenflow_rate": 1e400}', '{"tokenflow_rate": {"a": [1]}}')
"""What the front end refuses by itself: no JSON, or nested deeper than it takes."""
DEPOSIT = "tokenflow_deposit is true; it must be false with SGLANG_RUST_SERVER=1: token deposits"


@pytest.fixture(scope="module")
def served(start: Any) -> Any:
    flags = ("--scheduler", "tokenflow", "--max-total-tokens", "4000")
    with start(*flags, env={"SGLANG_RUST_SERVER": "1"}) as running:
        yield running


def generated(served: Any, custom: str, *, stream: bool, text: str = "Hello") -> tuple[int, Any]:
    """HTTP status and body of /generate; `custom`: JSON, or what is none."""
    sampling = f'{{"temperature": 0, "max_new_tokens": 8, "custom_params": {custom}}}'
    body = (
        f'{{"text": {json.dumps(text)}, "stream": {json.dumps(stream)}, '
        f'"sampling_params": {sampling}}}'
    )
    request = urllib.request.Request(
        served.server.url + "/generate",
        data=body.encode(),
        headers={"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=240) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def read(served: Any, path: str) -> Any:
    with urllib.request.urlopen(served.server.url + path, timeout=30) as answer:
        return json.load(answer)


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_rate_ends_its_request_alone(served, bad) -> None:
    custom, sentence = BAD[bad]
    status, body = generated(served, custom, stream=False)
    assert status == 400
    assert sentence in json.loads(body)["error"]["message"]
    status, body = generated(served, custom, stream=True)
    assert status == 200, "the front end has sent the status by then"
    (event,) = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
    assert sentence in event["error"]["message"]
    assert event["error"]["code"] == 400


@pytest.mark.parametrize("custom", UNREAD)
def test_what_the_front_end_cannot_read_it_refuses(served, custom) -> None:
    assert generated(served, custom, stream=False)[0] == 400


def test_one_bad_rate_in_a_batch_leaves_the_others_alone(served) -> None:
    good, bad = (
        {"max_new_tokens": 4, "custom_params": {"tokenflow_rate": rate}} for rate in (5, 0)
    )
    answer = served.post("/generate", {"text": ["a", "b"], "sampling_params": [good, bad]})
    served_one, refused = answer.body
    assert served_one["meta_info"]["completion_tokens"] == 4
    assert refused["error"]["message"] == f"tokenflow_rate is 0; {RATE_RANGE}"


def test_a_deposit_that_nothing_would_deliver_is_refused(served) -> None:
    status, body = generated(served, '{"tokenflow_deposit": true}', stream=True)
    assert status == 200
    assert DEPOSIT in body
    status, body = generated(served, '{"tokenflow_deposit": true}', stream=False)
    assert status == 200, "an answer that does not stream has no use for one"


def test_a_rate_reaches_the_scheduler(served) -> None:
    def counted(name: str) -> float:
        return served.labelled("tokenflow:ttft_seconds_count", qos_class=name)

    before = {name: counted(name) for name in ("custom", "listening", "default")}
    status, _ = generated(served, '{"tokenflow_rate": 20}', stream=True)
    assert status == 200
    chat = {**CHAT, "stream": True, "custom_params": {"tokenflow_class": "listening"}}
    assert served.post("/v1/chat/completions", chat).status == 200
    # Its own code for completions hands no custom_params on.
    plain = {"model": "tiny", "prompt": "Hello", "max_tokens": 8, "stream": True}
    told = {**plain, "custom_params": {"tokenflow_rate": "fast"}}
    assert served.post("/v1/completions", told).status == 200
    wanted = {name: count + 1 for name, count in before.items()}
    served.metrics_once(lambda _: {name: counted(name) for name in before} == wanted)
    refused = {**CHAT, "custom_params": {"tokenflow_rate": "fast"}}
    answer = served.post("/v1/chat/completions", refused)
    assert (answer.status, answer.body["message"]) == (400, f"tokenflow_rate is 'fast'; {NUMBER}")


def test_loads_and_information_are_there(served) -> None:
    (load,) = read(served, "/v1/loads")["loads"]
    assert load["max_total_num_tokens"] == 4000
    assert "tokenflow_headroom_tokens" not in load, "say in the docs that it is there"
    info = read(served, "/server_info")
    assert info["tokenflow_scheduler"] == "TokenFlowScheduler"
    assert info["tokenflow_host_ratio"] == 2.0
    assert served.total("tokenflow:policy_errors_total") == 0


@pytest.mark.parametrize("path", ["/tokenflow/streams/x", "/set_internal_state", "/get_load"])
def test_routes_that_the_front_end_has_not(served, path) -> None:
    assert served.post(path, {"rate": 5, "server_args": {"tokenflow_rate:x": 5}}).status == 404


def test_the_log_says_what_is_off_and_nothing_is_left(served) -> None:
    assert f"tokenflow with {RUST}: {OFF_IN_RUST}" in served.log()
    served.assert_clean()
