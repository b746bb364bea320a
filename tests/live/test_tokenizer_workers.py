"""Several tokenizer workers: same tokens, rates checked in each, any of them knows all streams."""

from __future__ import annotations

import time

import pytest
from told_streams import Reading, told

from tokenflow_sgl.engine.sglang.version import at_least

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.skipif(not at_least("0.5.23"), reason="refused there: workers serve SGLang's own"),
]

FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
SHIPPED = ("--scheduler", "tokenflow")
WORKERS, STARTUP_SECONDS = 2, 300
CONNECTIONS = 16
"""So many that each of the workers gets some."""
FAR = 10_000
"""Tokens that no test waits for: a client that is late still finds the stream running."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(FORCED, id="forced"),
        pytest.param(SHIPPED, id="shipped"),
    ],
)
def served(start, request):
    """Workers are new processes that import SGLang, as every user's are."""
    memory = ("--max-total-tokens", "704", "--hicache-ratio", "4")
    if request.param is SHIPPED:
        memory = ("--max-total-tokens", "40000")
    with start(
        *request.param,
        *memory,
        "--tokenizer-worker-num",
        str(WORKERS),
    ) as running:
        running.forced = request.param is FORCED
        # The server is healthy as soon as one of its workers is.
        end = time.monotonic() + STARTUP_SECONDS
        while running.log().count("Start multi-tokenizer worker process") < WORKERS:
            assert time.monotonic() < end, running.log()[-6000:]
            time.sleep(0.2)
        yield running


def test_tokens_are_those_of_one_worker(served, prompts, reference) -> None:
    for stream in (False, True):
        assert served.outputs(prompts, stream=stream) == reference
    if served.forced:
        assert served.total("tokenflow:preemptions_total") >= 4 * len(prompts)
    served.assert_clean()


@pytest.mark.parametrize("stream", [False, True])
def test_every_worker_refuses_a_bad_rate(served, prompts, stream) -> None:
    bad = {"custom_params": {"tokenflow_rate": "fast"}}
    answers = served.together(
        [lambda: served.generate(prompts[0], stream=stream, **bad)] * CONNECTIONS
    )
    assert [answer.status for answer in answers] == [400] * CONNECTIONS
    assert all("tokenflow_rate is 'fast'" in str(answer.body) for answer in answers)


def test_any_worker_changes_and_ends_the_stream_that_is_named(served, prompts, reference) -> None:
    if served.forced:
        pytest.skip("that policy takes no rates into account")
    one, other = (
        Reading(served, prompt, FAR, rid=f"stream-{n}") for n, prompt in enumerate(prompts[:2])
    )
    for stream in (one, other):
        stream.wait_for(8)
    for _ in range(CONNECTIONS):
        assert told(served, "stream-0", {"rate": 0}) == (204, "")
        assert told(served, "unknown", {"rate": 5})[0] == 404
    one.stands()
    before = len(other.ids)
    other.wait_for(before + 1)
    assert told(served, "stream-0", {"rate": 50}) == (204, "")
    assert told(served, "stream", "", "DELETE")[0] == 404
    for stream, answer in ((one, reference[0]), (other, reference[1])):
        stream.rid = stream.body["rid"]
        stream.ends_after(answer)
    served.assert_clean()
