"""How long the engine's steps take: a small linear model that policies can query.

    decode step  = d0 + d1 * batch + d2 * kv_tokens                      [seconds]
    prefill step = p0 + p1 * tokens + p2 * attention                     [seconds]
    host load    = l0 + l1 * tokens                                      [seconds]

A decode step gives each of its streams a token, or with speculative decoding those that were
accepted: `tokens_per_step` on average.

`attention` is the attention work of a prefill, the sum of `attention_work` over its requests,
which makes recompute cost superlinear in length as it is on real devices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Amount = TypeVar("Amount", float, NDArray[np.float64])
Coefficients = tuple[float, float, float]


SHARED_STEP = 2048
"""Tokens of a step that several prompts share."""


def attention_work(tokens: Amount, prefix: Amount | float = 0.0) -> Amount:
    """Keys that the new tokens of one request attend to, summed over them.

    Args:
        tokens: New tokens, n.
        prefix: Tokens before them whose KV is there.

    Returns:
        n * (prefix + n / 2): each new token attends to the prefix and to those before it.
    """
    return tokens * (prefix + tokens / 2)


def prefix_of(tokens: float, attention: float) -> float:
    """The prefix with which one request of `tokens` new tokens has this attention work."""
    return attention / tokens - tokens / 2


@dataclass(frozen=True, slots=True)
class StepCosts:
    """A snapshot of the learned costs; all coefficients are >= 0.

    decode, prefill: (constant, per batch row or token, per KV token or attention unit);
        None while nothing was measured.
    load: (constant, per token) of a host-to-device load; None while nothing was measured.
    tokens_per_step: output tokens of a stream per decode step, on average; 1.0 without speculation.
    seen_rows: batch of the largest decode step that `decode` was learned from; infinite if it was
        not learned.
    """

    decode: Coefficients | None = None
    prefill: Coefficients | None = None
    load: tuple[float, float] | None = None
    tokens_per_step: float = 1.0
    seen_rows: float = math.inf

    def decode_seconds(self, batch: Amount, kv_tokens: Amount) -> Amount:
        """Time of one decode step; 0.0 while unknown."""
        if self.decode is None:
            return 0.0 * batch
        constant, per_row, per_token = self.decode
        return constant + per_row * batch + per_token * kv_tokens

    def token_seconds(self, batch: Amount, kv_tokens: Amount) -> Amount:
        """Time in which decoding gives each of `batch` streams a token; 0.0 while unknown."""
        return self.decode_seconds(batch, kv_tokens) / self.tokens_per_step

    def prefill_seconds(self, tokens: Amount, prefix: Amount | float = 0.0) -> Amount:
        """Time of a prefill step of one request of `tokens` after `prefix` tokens; 0.0 unknown."""
        if self.prefill is None:
            return 0.0 * tokens
        constant, per_token, per_work = self.prefill
        return constant + per_token * tokens + per_work * attention_work(tokens, prefix)

    def prompt_seconds(self, tokens: Amount, prefix: Amount | float = 0.0) -> Amount:
        """Engine time that one prompt takes in steps that prompts share; 0.0 while unknown.

        It pays for its part of what a step of `SHARED_STEP` tokens takes whatever is in it. With
        all of that, a prompt of 450 tokens would seem to take 1.6 times what it does on an H200.

        Args:
            tokens: Of it that are computed.
            prefix: Tokens before these whose KV is there.
        """
        if self.prefill is None:
            return 0.0 * tokens
        constant, per_token, per_work = self.prefill
        each = constant / SHARED_STEP + per_token
        return each * tokens + per_work * attention_work(tokens, prefix)

    def load_seconds(self, tokens: Amount) -> Amount:
        """Time to bring `tokens` of KV back from the host; 0.0 while unknown."""
        if self.load is None:
            return 0.0 * tokens
        constant, per_token = self.load
        return constant + per_token * tokens
