"""Prompts of which several begin alike, and what undisturbed SGLang says of them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from servers.client import Served

NEW = 12
"""Tokens of the longest answer."""
STEMS, FORKS = 10, 3


@dataclass(frozen=True)
class Prompt:
    """One, and the answer to it at temperature 0.

    Attributes:
        ids: Its tokens.
        tokens: Those of the answer.
        chances: Their log probabilities.
        own: Log probabilities of its own tokens, but for the first one's.
    """

    ids: list[int]
    tokens: list[int]
    chances: list[float]
    own: list[float]


def make_prompts() -> list[list[int]]:
    """Of each stem one that has all of it, and some that leave it within."""
    rng = random.Random(20)

    def some(least: int, most: int) -> list[int]:
        return [rng.randrange(10, 200) for _ in range(rng.randint(least, most))]

    found = []
    for _ in range(STEMS):
        stem = some(160, 352)
        found.append([*stem, *some(5, 40)])
        found += [[*stem[: rng.randrange(64, len(stem))], *some(5, 40)] for _ in range(FORKS)]
    return found


def ask_all(stock: Served) -> list[Prompt]:
    """One after the other, nothing of them in a cache: what is computed is asked for."""
    return [_asked(stock, ids) for ids in make_prompts()]


def body_of(ids: list[int], new: int, **more: Any) -> dict[str, Any]:
    """Of a request for so many tokens, with their log probabilities."""
    params = {"temperature": 0, "max_new_tokens": new}
    return {"input_ids": ids, "sampling_params": params, "return_logprob": True, **more}


def chances_of(meta: dict[str, Any], what: str) -> list[float]:
    """Log probabilities of an answer's `output_token` or `input_token`, without unknown ones."""
    found = meta.get(f"{what}_logprobs") or []
    return [float(chance) for chance, *_ in found if chance is not None]


def _asked(stock: Served, ids: list[int]) -> Prompt:
    answer = stock.post("/generate", body_of(ids, NEW, logprob_start_len=0))
    assert answer.status == 200, answer
    meta = answer.body["meta_info"]
    assert not meta["cached_tokens"], "where a prompt's chances are asked for it is computed"
    tokens = answer.body["output_ids"]
    return Prompt(ids, tokens, chances_of(meta, "output_token"), chances_of(meta, "input_token"))
