"""Deadlines of whole answers on a real server: beside readers, in metrics, and the same tokens."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest
from servers.client import Served
from servers.fixtures import BROKEN
from servers.tuned import tuned

pytestmark = pytest.mark.engine

FLAGS = (
    *("--scheduler", "tokenflow", *tuned(min_run=0.05)),
    *("--max-total-tokens", "1500", "--hicache-ratio", "4"),
)
"""Twelve streams need about 3,500 tokens: they take turns."""
TOKENS = 250
TRIES = 6
"""Crowds, one of which has to be too much; clients that stand still ask one after the other."""


@pytest.fixture(scope="module")
def undisturbed(start: Any, prompts: list[list[int]]) -> list[list[int]]:
    """What stock SGLang answers where all streams fit."""
    with start("--max-total-tokens", "8000") as served:
        answers: list[list[int]] = served.outputs(prompts, max_new_tokens=TOKENS)
    return answers


def mixed(served: Served, prompts: list[list[int]]) -> list[list[int]]:
    """Of three requests one has a reader, one a deadline, one a moment, streamed or not.

    The last one's moment lies in the past.
    """
    terms: list[dict[str, Any]] = [
        {"tokenflow_rate": 20},
        {"tokenflow_deadline": 5},
        {"tokenflow_deadline_at": time.time() + 300},
    ]
    asks = [
        partial(
            served.generate,
            prompt,
            stream=number % 2 == 0,
            max_new_tokens=TOKENS,
            custom_params=terms[number % 3],
        )
        for number, prompt in enumerate(prompts[:-1])
    ]
    past = {"tokenflow_deadline_at": time.time() - 60}
    asks.append(partial(served.generate, prompts[-1], max_new_tokens=TOKENS, custom_params=past))
    answers = served.together(asks)
    assert [each.status for each in answers] == [200] * len(prompts), answers
    return [each.body["output_ids"] for each in answers]


def test_tokens_are_those_of_stock_and_deadlines_are_counted(start, prompts, undisturbed) -> None:
    with start(*FLAGS) as served:
        crowds = 0
        for _ in range(TRIES):
            crowds += 1
            assert mixed(served, prompts) == undisturbed
            if served.total("tokenflow:preemptions_total") > 0:
                break
        else:
            raise AssertionError("there is not enough memory for all")
        given = sum(number % 3 > 0 for number in range(len(prompts) - 1)) + 1
        served.wait_until("deadlines_total", float(crowds * given))
        # Those of the past at least came too late; those with five minutes were in time.
        late = served.labelled("tokenflow:deadlines_total", kept="no")
        well = served.labelled("tokenflow:deadlines_total", kept="yes")
        assert late >= crowds
        assert well >= crowds * sum(number % 3 == 2 for number in range(len(prompts) - 1))
        served.wait_until("lost_deadlines", 0.0)
        served.assert_clean()


def test_kv_that_is_not_copied_is_noticed(start, prompts, undisturbed) -> None:
    """The control: what the streams that pause have on the host is loaded, and read."""
    env = {"TOKENFLOW_TEST_BREAK": "no-copy"}
    with start(*FLAGS, program=BROKEN, env=env) as served:
        assert any(mixed(served, prompts) != undisturbed for _ in range(TRIES))


@pytest.mark.parametrize(
    ("custom", "said"),
    [
        ({"tokenflow_deadline": 0}, "tokenflow_deadline is 0; it must be a number of seconds"),
        ({"tokenflow_deadline_at": 5e12}, "tokenflow_deadline_at is 5000000000000.0; it must"),
    ],
)
def test_a_bad_deadline_is_refused(start, prompts, custom, said) -> None:
    with start(*FLAGS) as served:
        for stream in (False, True):
            answer = served.generate(prompts[0], stream=stream, custom_params=custom)
            assert answer.status == 400
            assert said in str(answer.body)
