"""A server with a file of classes: readers of each, and what the metrics say of them."""

from __future__ import annotations

import time

import pytest

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
CLASSES = ("voice", "tools", "chat")


@pytest.fixture(scope="module")
def served(start, tmp_path_factory):
    path = tmp_path_factory.mktemp("classes") / "classes.toml"
    path.write_text(FILE)
    flags = ("--scheduler", "tokenflow", "--max-total-tokens", "1500", "--hicache-ratio", "4")
    flags += ("--tokenflow-admission", "both")  # the prompts are served by both rules
    with start(*flags, "--tokenflow-classes", str(path)) as server:
        path.unlink()  # what was read at the start is what counts
        yield server
        server.assert_clean()


def test_all_classes_are_served_and_told_apart(served, prompts) -> None:
    alone = served.outputs(prompts, stream=True, **LONG)
    calls = [
        lambda p=p, name=name: served.generate(
            p, stream=True, custom_params={"tokenflow_class": name}, **LONG
        )
        for name in CLASSES
        for p in prompts
    ]
    answers = served.together(calls)
    assert [answer.body["output_ids"] for answer in answers] == alone * len(CLASSES)
    assert served.total("tokenflow:preemptions_total") > 0, "there is not enough memory for all"
    time.sleep(2.1)  # what is counted per token is handed on once a second
    counted: dict[str, set[str]] = {}
    for (name, labels), value in served.metrics().items():
        if value and "qos_class" in dict(labels):
            counted.setdefault(dict(labels)["qos_class"], set()).add(name)
    assert set(counted) - {"not-streamed"} == {*CLASSES, "default"}  # SGLang warms up unstreamed
    for name in CLASSES:
        read = name != "tools"
        assert "tokenflow:output_tokens_total" in counted[name]
        assert "tokenflow:ttft_seconds_count" in counted[name]
        assert ("tokenflow:effective_tokens_total" in counted[name]) == read
        assert ("tokenflow:finished_streams_total" in counted[name]) == read
        assert ("tokenflow:stall_seconds_total" in counted[name]) <= read


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
    def custom() -> float:
        return sum(
            value
            for (name, labels), value in served.metrics().items()
            if name == "tokenflow:ttft_seconds_count" and dict(labels)["qos_class"] == "custom"
        )

    asked = {"x-slo-tpot-ms": "50", "x-slo-ttft-ms": "2000", "x-slo-tbt-ms": "900"}
    streamed = {**OURS, "stream": True}
    plain = served.post("/generate", streamed).body[-1]["output_ids"]
    time.sleep(2.1)
    assert custom() == 0.0
    assert served.post("/generate", streamed, asked).body[-1]["output_ids"] == plain
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", PLAIN)):
        assert served.post(path, {**body, "stream": True}, asked).status == 200
    time.sleep(2.1)
    assert custom() == 3.0
