"""A server with a file of classes: readers of each, and what the metrics say of them."""

from __future__ import annotations

import json
import urllib.request

import pytest
from servers.client import Samples
from servers.tuned import tuned

pytestmark = pytest.mark.engine

FILE = """
default = "chat"

[classes.chat]
rate = 20
tolerance = 0.5

[classes.voice]
rate = 5
weight = 4
ttft_slo = 3
tpot_slo = 0.5

[classes.tools]
rate = 50
tolerance = 5
reader = false
"""
LONG = {"max_new_tokens": 250}
READ = ("voice", "chat")
CLASSES = (*READ, "tools")
TRIES = 6
"""Crowds, one of which has to be too much; clients that stand still ask one after the other."""


@pytest.fixture(scope="module")
def served(start, tmp_path_factory):
    path = tmp_path_factory.mktemp("classes") / "classes.toml"
    path.write_text(FILE)
    flags = ("--scheduler", "tokenflow", "--max-total-tokens", "1500", "--hicache-ratio", "4")
    flags += tuned(admission="both")  # the prompts are served by both rules
    with start(*flags, "--tokenflow-classes", str(path)) as server:
        path.unlink()  # what was read at the start is what counts
        yield server
        server.assert_clean()


def counts(samples: Samples) -> dict[str, set[str]]:
    """Which metrics have counted something, by class."""
    counted: dict[str, set[str]] = {}
    for (name, labels), value in samples.items():
        if value and "qos_class" in dict(labels):
            counted.setdefault(dict(labels)["qos_class"], set()).add(name)
    return counted


def all_counted(counted: dict[str, set[str]]) -> bool:
    """Whether each class has what there is to count of it."""
    of_all = {"tokenflow:output_tokens_total", "tokenflow:ttft_seconds_count"}
    of_read = {"tokenflow:effective_tokens_total", "tokenflow:finished_streams_total", *of_all}
    return all(of_all <= counted.get(name, set()) for name in CLASSES) and all(
        of_read <= counted[name] for name in READ
    )


@pytest.mark.slow
def test_all_classes_are_served_and_told_apart(served, prompts) -> None:
    alone = served.outputs(prompts, stream=True, **LONG)
    calls = [
        lambda p=p, name=name: served.generate(
            p, stream=True, custom_params={"tokenflow_class": name}, **LONG
        )
        for name in CLASSES
        for p in prompts
    ]
    for _ in range(TRIES):
        answers = served.together(calls)
        assert [answer.body["output_ids"] for answer in answers] == alone * len(CLASSES)
        if served.total("tokenflow:preemptions_total") > 0:
            break
    else:
        raise AssertionError("there is not enough memory for all")
    # Much of what is counted is handed on once a second.
    samples = served.metrics_once(lambda now: all_counted(counts(now)))
    gauges = ("tokenflow:reading_streams", "tokenflow:stalled_streams")
    for gauge in gauges:  # 0 by now, but there
        of = {dict(labels)["qos_class"] for name, labels in samples if name == gauge}
        assert of & set(CLASSES) == set(READ)
    counted = counts(samples)
    assert set(counted) - {"not-streamed"} == {*CLASSES, "default"}  # SGLang warms up unstreamed
    for name in set(CLASSES) - set(READ):
        unread = {"effective_tokens_total", "finished_streams_total", "stall_seconds_total"}
        assert not counted[name] & {f"tokenflow:{each}" for each in unread}


def test_an_unknown_class_is_refused_with_the_known_ones(served) -> None:
    answer = served.post(
        "/generate",
        {
            "input_ids": [1, 2, 3],
            "sampling_params": {"custom_params": {"tokenflow_class": "vice"}},
        },
    )
    assert answer.status == 400
    assert "known classes are agent, chat, listening, reading, tools, voice" in str(answer.body)


CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
PLAIN = {"prompt": "a", "model": "tiny", "max_tokens": 9}
OURS = {"input_ids": [5, 6, 7], "sampling_params": {"temperature": 0, "max_new_tokens": 9}}


TOLD_NOTHING = (
    ("/v1/responses", {"input": "hi", "max_output_tokens": 9}),
    ("/v1/messages", CHAT),
    ("/api/chat", {**CHAT, "options": {"num_predict": 9}}),
    ("/api/generate", {"model": "tiny", "prompt": "hi", "options": {"num_predict": 9}}),
)
"""Routes that hand no custom_params on."""


@pytest.mark.parametrize(("path", "body"), TOLD_NOTHING)
@pytest.mark.parametrize("stream", [False, True])
def test_a_route_that_takes_no_rate_says_so(served, path, body, stream) -> None:
    with urllib.request.urlopen(served.server.url + "/v1/models", timeout=60) as response:
        (model,) = (each["id"] for each in json.load(response)["data"])
    asked = {**body, "model": model, "stream": stream}
    key, left_out = "tokenflow_rate", "it must be left out, because this route takes no rate"
    for more, where in (
        ({"custom_params": {key: 20}}, "custom_params is 20"),
        ({"custom_params": {key: "fast"}}, "custom_params is 'fast'"),
        ({"metadata": {key: "5"}}, "metadata is '5'"),
        ({key: 5}, "the request is 5"),
    ):
        answer = served.post(path, {**asked, **more})
        assert answer.status == 400
        assert f"'{key}' in {where}; {left_out}" in str(answer.body).replace('\\"', '"')
    headers = {"x-slo-ttft-ms": "soon"}  # a gateway may set it for all
    assert served.post(path, {**asked, "custom_params": {"mine": 1}}, headers).status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_objective_in_a_header_is_refused(served, stream) -> None:
    for path, body in (
        ("/generate", OURS),
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", PLAIN),
    ):
        answer = served.post(path, {**body, "stream": stream}, {"X-SLO-TTFT-MS": "soon"})
        assert answer.status == 400
        assert "x-slo-ttft-ms is 'soon'; it must be a number of milliseconds." in str(answer.body)
        answer = served.post(path, {**body, "stream": stream}, {"x-slo-tpot-ms": "0"})
        assert answer.status == 400


def test_objectives_of_headers_reach_the_scheduler(served) -> None:
    # A time per token is a rate of its own, and so a class that no other request here has.
    custom = ("tokenflow:ttft_seconds_count", (("qos_class", "custom"),))
    asked = {"x-llm-d-slo-tpot-ms": "50", "x-slo-ttft-ms": "2000", "x-slo-tbt-ms": "900"}
    streamed = {**OURS, "stream": True}
    before = served.total("tokenflow:ttft_seconds_count")
    plain = served.post("/generate", streamed).body[-1]["output_ids"]
    served.wait_for("ttft_seconds_count", before + 1)
    assert served.metrics().get(custom, 0.0) == 0.0
    assert served.post("/generate", streamed, asked).body[-1]["output_ids"] == plain
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", PLAIN)):
        assert served.post(path, {**body, "stream": True}, asked).status == 200
    samples = served.metrics_once(lambda now: now.get(custom, 0.0) >= 3.0)
    assert samples[custom] == 3.0
