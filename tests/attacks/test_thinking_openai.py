"""A model that thinks, asked with the OpenAI client: what it sees is what the scheduler counts."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from openai import OpenAI
from servers.fixtures import respelled
from servers.tuned import tuned

from tokenflow_sgl_emulator.tokenizer import make_tokenizer

pytestmark = [pytest.mark.engine, pytest.mark.slow]

QUESTION = "hi"
TOKENS = 64
STREAMS = 10
TURNS = 6
"""On a busy machine clients come one after the other: so many until one is preempted, at most."""
FIRST_WORD = 259
"""The tokens below are bytes."""
STRESS = (
    *("--scheduler", "tokenflow", "--max-total-tokens", "352", "--hicache-ratio", "4"),
    *tuned(min_run=0.1, safety=0.2, band_seconds=0.2, hysteresis=0.2, calm=1),
    *("--tokenflow-eta", "10"),
)


@dataclass(frozen=True)
class Thinker:
    """A model whose answer to `QUESTION` begins with `thought` tokens of reasoning.

    reasoning, answer: the text of what it says before and after the end of its thinking.
    """

    model: Path
    thought: int
    reasoning: str
    answer: str


@pytest.fixture(scope="module")
def thinking(start, models, tmp_path_factory) -> Thinker:
    """Of what the model answers on stock SGLang, one word becomes the end of the thinking."""
    tokenizer = make_tokenizer(512)
    messages = [{"role": "user", "content": QUESTION}]
    asked = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    with start("--max-total-tokens", "4000") as stock:
        [said] = stock.outputs([asked])
    end = next(
        place
        for place in range(12, 50)
        if said[place] >= FIRST_WORD and said.count(said[place]) == 1
    )
    folder = tmp_path_factory.mktemp("thinking")
    model = respelled(models / "qwen3", folder, {"</think>": said[end]}, added=True)
    return Thinker(model, end + 1, *(tokenizer.decode(p) for p in (said[:end], said[end + 1 :])))


def ask(url: str) -> tuple[str, str]:
    """(reasoning, answer) as a client puts them together."""
    seen = {"reasoning_content": "", "content": ""}
    with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        stream = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=TOKENS,
            temperature=0,
            stream=True,
            extra_body={"custom_params": {"tokenflow_rate": random.choice([5, 20])}},
        )
        for chunk in stream:
            for name in seen:
                seen[name] += getattr(chunk.choices[0].delta, name, None) or ""
    return seen["reasoning_content"], seen["content"]


@pytest.mark.parametrize("interval", ["1", "40"])
def test_the_client_sees_what_is_counted(start, thinking, interval, tmp_path) -> None:
    log = tmp_path / "decisions"
    flags = ("--reasoning-parser", "qwen3", "--stream-interval", interval)
    with start(
        *STRESS, *flags, "--tokenflow-decision-log", str(log), model=thinking.model
    ) as served:
        names = ("reasoning_tokens_total", "output_tokens_total", "ttfvt_seconds_count")
        before = {name: served.total(f"tokenflow:{name}") for name in names}
        for turns in range(1, TURNS + 1):
            with ThreadPoolExecutor(STREAMS) as pool:
                answers = list(pool.map(ask, [served.server.url] * STREAMS))
            assert answers == [(thinking.reasoning, thinking.answer)] * STREAMS
            hidden, streams = thinking.thought * STREAMS * turns, STREAMS * turns
            expected = (hidden, TOKENS * streams - hidden, streams)
            for name, number in zip(names, expected, strict=True):
                served.wait_until(name, before[name] + number)
            if served.total("tokenflow:preemptions_total") > 0:
                break
        else:
            raise AssertionError("the test must disturb")
        served.assert_clean()
    early = [
        pause
        for line in map(json.loads, log.read_text().splitlines())
        for pause in line["preempt"]
        for seen in line["candidates"]
        if seen["rid"] == pause["rid"] and seen["generated"] <= thinking.thought
    ]
    assert {pause["cause"] for pause in early} <= {"memory", "newcomer", "exchange"}
