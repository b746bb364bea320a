"""Requests that do not stream have no reader: they are not paused for being ahead of one."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.engine

FLAGS = ("--scheduler", "tokenflow", "--max-total-tokens", "1500", "--hicache-ratio", "4")
LONG = {"max_new_tokens": 200}
TURNS = 6
"""On a busy machine clients come one after the other: so many until one is preempted, at most."""


@pytest.fixture(scope="module")
def served(start):
    with start(*FLAGS) as server:
        yield server
        server.assert_clean()


@pytest.fixture(scope="module")
def alone(start, prompts):
    """Stock SGLang's answers."""
    with start("--max-total-tokens", "4000") as server:
        return server.outputs(prompts, **LONG)


def preemptions(served) -> dict[str, float]:
    """By cause."""
    return {
        dict(labels)["cause"]: value
        for (name, labels), value in served.metrics().items()
        if name == "tokenflow:preemptions_total"
    }


@pytest.mark.slow
def test_without_readers_the_engine_is_left_alone(served, prompts, alone) -> None:
    assert served.outputs(prompts * 2, **LONG) == alone * 2
    assert set(preemptions(served).values()) == {0.0}


def test_readers_give_way_to_each_other_and_others_to_memory_only(served, prompts, alone) -> None:
    slow = {"custom_params": {"tokenflow_rate": 2.0}}
    calls = [lambda p=p: served.generate(p, stream=True, **slow, **LONG) for p in prompts]
    calls += [lambda p=p: served.generate(p, **LONG) for p in prompts]
    tokens = served.total("tokenflow:output_tokens_total")
    for _ in range(TURNS):
        answers = served.together(calls)
        assert [answer.body["output_ids"] for answer in answers] == alone * 2
        if sum(preemptions(served).values()):
            break
    else:
        raise AssertionError("there is not enough memory for all")
    served.wait_for("output_tokens_total", tokens + sum(map(len, alone)) * 2)
    samples = served.metrics()
    unread = (("qos_class", "not-streamed"),)
    assert samples[("tokenflow:output_tokens_total", unread)] > 0
    for name in ("stalls_total", "ttft_seconds_count", "finished_streams_total"):
        classes = {dict(labels)["qos_class"] for n, labels in samples if n == f"tokenflow:{name}"}
        assert "not-streamed" not in classes, name
