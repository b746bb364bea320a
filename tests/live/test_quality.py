"""How well a trained model speaks does not depend on the scheduler: perplexities are the same.

Of a text of ours, read in parts beside streams that are paused; and of these streams' answers.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from servers.fixtures import BROKEN
from words.chats import encoder
from words.questions import FEW

from tokenflow_sgl_emulator.trained.shipped import SMOLLM2, NotInstalledError, converted

pytestmark = pytest.mark.engine

SAME = 1e-6
"""Relative difference of perplexities."""
KNOWN = 45.400
"""Perplexity of the text. Another reading of the weights or of the text gives another one."""
TOKENS = 20
AFTER = len(FEW) // 2
"""So many pauses a paragraph is read. It takes the memory of who is paused, who loads it again."""
PAUSED = (
    *("--scheduler", "tokenflow", "--tokenflow-policy", "forced:MakeWay", "--hicache-ratio", "6"),
    # What the longer paragraph takes.
    *("--max-total-tokens", "224", "--chunked-prefill-size", "64"),
)
PASSAGE = Path(__file__).parents[1] / "helpers/words/passage.txt"


@dataclass(frozen=True)
class Quality:
    """Perplexities of the text and of the answers, and the answers."""

    text: float
    answers: float
    tokens: list[list[int]]


@pytest.fixture(scope="module")
def model() -> Path:
    try:
        return converted(SMOLLM2, "float32")
    except NotInstalledError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def asked(model) -> tuple[list[list[int]], list[list[int]]]:
    """Tokens of the text's paragraphs and of the questions."""
    encode = encoder(model)
    paragraphs = PASSAGE.read_text().strip().split("\n\n")
    return [encode.plain(each) for each in paragraphs], [encode(each.text) for each in FEW]


def perplexity(chances: list[float]) -> float:
    return math.exp(-sum(chances) / len(chances))


def quality(
    served: Any, paragraphs: list[list[int]], questions: list[list[int]], after: int = 0
) -> Quality:
    """after: so many pauses the first paragraph is read, and so many later the next one."""
    alone = {"temperature": 0, "max_new_tokens": 1}
    whole = {"sampling_params": alone, "return_logprob": True, "logprob_start_len": 0}

    def text(ids: list[int], paused: float) -> Any:
        if paused:
            served.wait_for("preemptions_total", paused)
        return served.post("/generate", {"input_ids": ids, **whole})

    calls = [
        *(
            lambda ids=ids, paused=paused: text(ids, paused)
            for ids, paused in zip(paragraphs, itertools.count(after, after), strict=False)
        ),
        *(
            lambda ids=ids: served.generate(ids, return_logprob=True, max_new_tokens=TOKENS)
            for ids in questions
        ),
    ]
    told = [each.body for each in served.together(calls)]
    texts, answers = told[: len(paragraphs)], told[len(paragraphs) :]
    read = [
        chance
        for each in texts
        for chance, *_ in each["meta_info"]["input_token_logprobs"][
            1:
        ]  # nothing precedes the first
    ]
    said = [chance for each in answers for chance, *_ in each["meta_info"]["output_token_logprobs"]]
    assert len(read) == sum(map(len, paragraphs)) - len(paragraphs)
    return Quality(perplexity(read), perplexity(said), [each["output_ids"] for each in answers])


@pytest.fixture(scope="module")
def stock(start, model, asked) -> Quality:
    with start("--max-total-tokens", "4096", model=model) as served:
        return quality(served, *asked)


def test_both_servers_speak_equally_well(start, model, asked, stock) -> None:
    with start(*PAUSED, model=model) as served:
        ours = quality(served, *asked, after=AFTER)
        paused = served.total("tokenflow:preemptions_total")
        loaded = served.total("tokenflow:resume_loaded_tokens_total")
        served.assert_clean()
    print(f"{stock}\n{ours}\n{paused:.0f} pauses, {loaded:.0f} tokens loaded")
    assert paused >= len(FEW)
    assert loaded > 0
    assert ours.text == pytest.approx(stock.text, rel=SAME)
    assert ours.answers == pytest.approx(stock.answers, rel=SAME)
    assert ours.tokens == stock.tokens


def test_it_is_the_model_that_it_should_be(stock) -> None:
    assert stock.text == pytest.approx(KNOWN, rel=1e-3)


@pytest.mark.slow
def test_kv_that_is_not_copied_is_noticed(start, model, asked, stock) -> None:
    env = {"TOKENFLOW_TEST_BREAK": "no-copy"}
    with start(*PAUSED, model=model, env=env, program=BROKEN) as served:
        ours = quality(served, *asked, after=AFTER)
    print(stock, ours)
    assert ours.answers != pytest.approx(stock.answers, rel=1000 * SAME)
