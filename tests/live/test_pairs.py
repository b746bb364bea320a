"""Features that people use together: under forced preemption, the tokens of the undisturbed run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow]

FORCED = (
    *("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery"),
    *("--chunked-prefill-size", "32"),
)
# Twelve streams need about 1,350 tokens: the device holds half of it, the host the rest.
HICACHE = ("--max-total-tokens", "704", "--hicache-ratio", "4")
LATE = {"TOKENFLOW_EMU_LATE_COPIES": "4", "SGLANG_SWA_EVICTION_INTERVAL": "8"}
PRIORITIES = ("--enable-priority-scheduling",)
STATES = ("--max-mamba-cache-size", "60", "--mamba-track-interval", "64")
WORKERS = ("--tokenizer-worker-num", "2")
# Each rank has half of the streams. A chunk is divided by the ranks.
DP_ATTENTION = (
    *("--enable-dp-attention", "--dp-size", "2", "--tp-size", "2"),
    *("--max-total-tokens", "480", "--chunked-prefill-size", "64"),
)
# 8 tokens more for each stream.
ROOM = ("--max-total-tokens", "960", "--max-running-requests", "16")
NGRAM = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "4", *ROOM)
CHAIN = (
    *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1"),
    *("--speculative-num-draft-tokens", "4", *ROOM),
)
TREE = (*CHAIN, "--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "8")
ROOM_FOR_TREES = ("--max-total-tokens", "1200")  # 24 tokens for each stream


@dataclass(frozen=True)
class Pair:
    """A server with two or three of the features.

    Attributes:
        model: The tiny model.
        flags: Of the server.
        algorithm: That verifies drafts; "": none, or `flags` name it.
        drafts: Its draft model.
    """

    model: str
    flags: tuple[str, ...]
    algorithm: str = ""
    drafts: str = ""


PAIRS = {
    "sliding windows, priorities": Pair("qwen3-window", PRIORITIES),
    "sliding windows, tokenizer workers": Pair("qwen3-window", WORKERS),
    "MLA, tokenizer workers": Pair("deepseek", WORKERS),
    "MLA, DP attention": Pair("deepseek", DP_ATTENTION),
    "MLA, NGRAM": Pair("deepseek", NGRAM),
    "MLA, NEXTN, tokenizer workers": Pair(
        "deepseek-mtp", (*CHAIN, *WORKERS), "NEXTN", "deepseek-mtp"
    ),
    "NGRAM, priorities": Pair("qwen3", (*NGRAM, *PRIORITIES)),
    "NEXTN, tokenizer workers": Pair("mtp", (*CHAIN, *WORKERS), "NEXTN", "mtp"),
    "recurrent states, priorities": Pair("qwen3.5", (*STATES, *PRIORITIES)),
    "recurrent states, NEXTN, tokenizer workers": Pair(
        "qwen3.5-mtp", (*STATES, *CHAIN, *WORKERS), "NEXTN", "qwen3.5-mtp"
    ),
    "recurrent states, NEXTN, DP attention": Pair(
        "qwen3.5-mtp", (*STATES, *CHAIN, *DP_ATTENTION), "NEXTN", "qwen3.5-mtp"
    ),
    "DP attention, priorities": Pair("qwen3", (*DP_ATTENTION, *PRIORITIES)),
    "DP attention, tokenizer workers": Pair("qwen3", (*DP_ATTENTION, *WORKERS)),
    "MLA, NEXTN in trees": Pair("deepseek-mtp", (*TREE, *ROOM_FOR_TREES), "NEXTN", "deepseek-mtp"),
    "recurrent states, NEXTN in trees": Pair(
        "qwen3.5-mtp", (*STATES, *TREE, *ROOM_FOR_TREES), "NEXTN", "qwen3.5-mtp"
    ),
    "DP attention, EAGLE3 in trees": Pair(
        "qwen3-deeper", (*TREE, *DP_ATTENTION, *ROOM_FOR_TREES), "EAGLE3", "eagle3-qwen3"
    ),
    "DP attention, EAGLE3": Pair("qwen3-deeper", (*CHAIN, *DP_ATTENTION), "EAGLE3", "eagle3-qwen3"),
}


@pytest.fixture(scope="module")
def folder_of(models, drafting) -> Callable[[str], Path]:
    """`folder_of(model)`."""
    return lambda name: (models if (models / name).exists() else drafting) / name


@pytest.fixture(scope="module")
def undisturbed_by(start, folder_of, prompts) -> Callable[[str], list[list[int]]]:
    """`undisturbed_by(model)`: what stock SGLang answers, one request at a time."""

    @lru_cache
    def ask(model: str) -> list[list[int]]:
        with start("--max-total-tokens", "4000", model=folder_of(model)) as served:
            return [served.outputs([prompt])[0] for prompt in prompts]

    return ask


@pytest.mark.parametrize("name", PAIRS)
def test_tokens_are_those_of_the_undisturbed_run(
    start, drafting, folder_of, prompts, undisturbed_by, name
) -> None:
    pair = PAIRS[name]
    wanted, model = undisturbed_by(pair.model), folder_of(pair.model)
    flags = (*FORCED, *HICACHE, *pair.flags)
    if pair.algorithm:
        draft = ("--speculative-draft-model-path", str(drafting / pair.drafts))
        flags = (*flags, "--speculative-algorithm", pair.algorithm, *draft)
    with start(*flags, model=model, env=LATE) as served:
        for stream in (False, True):
            asked = [
                (prompt, {**own(flags, number), "stream": stream})
                for number, prompt in enumerate(prompts)
            ]
            answers = served.together(
                [lambda p=p, how=how: served.generate(p, **how) for p, how in asked]
            )
            assert [answer.status for answer in answers] == [200] * len(prompts), answers
            assert [answer.body["output_ids"] for answer in answers] == wanted
        preempted = served.total("tokenflow:preemptions_total")
        print(f"{name}: {preempted:.0f} preemptions")
        assert preempted >= 2 * len(prompts), "the test must disturb"
        served.assert_clean()


def own(flags: tuple[str, ...], number: int) -> dict[str, int]:
    """With priorities, each third stream states none; the others are far apart."""
    if PRIORITIES[0] not in flags or number % 3 == 0:
        return {}
    return {"priority": 5 if number % 3 == 1 else -1_000_000}
