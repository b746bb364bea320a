"""Streams of one system prompt on a live server: its KV is there once, and is counted once."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from servers.tuned import CHECK_RANKS

pytestmark = pytest.mark.engine

COMMON = 640
"""Tokens with which all prompts begin: five stretches of 128."""
STREAMS = 12
OWN = 20
TOKENS = 100
# Two prompts and what they generate would fill it if each had its own copy. With one copy seven
# streams run, so that the others take turns with them.
MEMORY = ("--max-total-tokens", "1504", "--hicache-ratio", "4")
TURNS = 6
"""On a busy machine clients come one after the other: so many until enough meet, at most."""


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.parametrize(
    "more",
    [
        (),
        pytest.param(("--page-size", "16"), marks=pytest.mark.slow),
        pytest.param(("--tp-size", "2", CHECK_RANKS), marks=pytest.mark.slow),
    ],
)
def test_as_many_run_as_fit_with_one_copy(start, tmp_path, more) -> None:
    rng = random.Random(5)

    def drawn(tokens: int) -> list[int]:
        return [rng.randrange(10, 200) for _ in range(tokens)]

    beginning = drawn(COMMON)
    prompts = [[*beginning, *drawn(OWN)] for _ in range(STREAMS)]
    log = tmp_path / "decisions.jsonl"
    flags = ("--scheduler", "tokenflow", "--tokenflow-decision-log", str(log))
    reader = {"max_new_tokens": TOKENS, "custom_params": {"tokenflow_rate": 10}, "stream": True}
    with start(*flags, *MEMORY, *more) as served:
        alone = [served.outputs([prompt], max_new_tokens=TOKENS)[0] for prompt in prompts]
        for _ in range(TURNS):
            answers = served.together(
                [functools.partial(served.generate, prompt, **reader) for prompt in prompts]
            )
            assert [answer.body["output_ids"] for answer in answers] == alone
            told = lines(log)
            alike = {
                stream["prompt"] + stream["generated"] - stream["own"]
                for line in told
                for stream in line["candidates"]
            }
            most = max(line["streams"]["running"] for line in told)
            if most > 1504 // (COMMON + OWN) and COMMON in alike:
                break
        else:
            raise AssertionError(f"{most} of them ran together, with {alike} tokens in common")
        # A stream that no decision met before its prefill has only the second of the two.
        assert alike <= {0, COMMON}, "before anything was computed, and then"
        assert served.total("tokenflow:policy_errors_total") == 0
        served.assert_clean()


def test_streams_of_two_beginnings_take_turns_together(start, tmp_path) -> None:
    """Memory has room for one beginning and a few streams, never for both beginnings."""
    rng = random.Random(6)

    def drawn(tokens: int) -> list[int]:
        return [rng.randrange(10, 200) for _ in range(tokens)]

    beginnings = [drawn(COMMON) for _ in range(2)]
    prompts = [[*beginnings[turn % 2], *drawn(OWN)] for turn in range(8)]
    log = tmp_path / "decisions.jsonl"
    flags = ("--scheduler", "tokenflow", "--tokenflow-decision-log", str(log))
    memory = ("--max-total-tokens", str(2 * COMMON - 80), "--hicache-ratio", "4")
    reader = {"max_new_tokens": TOKENS, "custom_params": {"tokenflow_rate": 10}, "stream": True}
    with start(*flags, *memory) as served:
        alone = [served.outputs([prompt], max_new_tokens=TOKENS)[0] for prompt in prompts]
        for _ in range(TURNS):
            answers = served.together(
                [functools.partial(served.generate, prompt, **reader) for prompt in prompts]
            )
            assert [answer.body["output_ids"] for answer in answers] == alone
            assert served.total("tokenflow:policy_errors_total") == 0
            if any(leave_together(line) for line in lines(log)):
                break
        else:
            raise AssertionError("no group ever left as a whole")
        served.assert_clean()


def leave_together(line: dict[str, Any]) -> bool:
    """Whether all that ran left, more than one, and a stream brings its beginning back."""
    brings = {
        stream["rid"]
        for stream in line["candidates"]
        if stream["own"] > COMMON and stream["phase"] != "running"
    }
    left = len(line["preempt"])
    return left > 1 and left == line["streams"]["running"] and bool(brings & {*line["take_up"]})
