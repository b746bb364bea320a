"""Servers whose KV is placed layer by layer, and what they say with all of its probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from servers.fixtures import BROKEN

NEW, VOCABULARY = 24, 512
"""Tokens of an answer, and of the tiny models."""
PLAIN = ("--disable-radix-cache", "--chunked-prefill-size", "32")
PLANS = "layer_plans_made_up"
"""A module that servers can import."""
Said = list[tuple[list[int], list[list[float]]]]
"""Of each answer its tokens, and at each the log probabilities of the whole vocabulary."""


def ask(served: Any, prompts: list[list[int]], new: int = NEW) -> Said:
    """All in one request."""
    sampling = {"temperature": 0, "max_new_tokens": new, "ignore_eos": True}
    asked = {"return_logprob": True, "top_logprobs_num": VOCABULARY}
    answer = served.post("/generate", {"input_ids": prompts, "sampling_params": sampling, **asked})
    assert answer.status == 200, answer
    said: Said = []
    for body in answer.body:
        top = body["meta_info"]["output_top_logprobs"]
        chances = [[each[0] for each in sorted(row, key=lambda each: each[1])] for row in top]
        said.append((body["output_ids"], chances))
    assert len(said) == len(prompts)
    assert all(len(row) == VOCABULARY for _, chances in said for row in chances)
    return said


@contextmanager
def layered(
    start: Any, notes: Path, plan: str, *flags: str, model: Path, break_: str = ""
) -> Iterator[Any]:
    """A server whose layers lie as the class `plan` says, which notes each step there."""
    env = {"TOKENFLOW_TEST_LAYERS": str(notes / "notes"), "TOKENFLOW_EMU_LATE_COPIES": "4"}
    program = {}
    if break_:
        env["TOKENFLOW_TEST_BREAK"], program = break_, {"program": BROKEN}
    with start("--tokenflow-layerwise", plan, *flags, env=env, model=model, **program) as served:
        yield served
