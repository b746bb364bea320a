"""Mixes of short and long contexts, after OrbitFlow (5.1): the load that layer placement is for.

OrbitFlow samples ShareGPT conversations so that its traces "span a broad spectrum of short to long
inputs and outputs", at most 8K, 32K or 128K tokens in all; their lengths are printed as a picture
only (Fig. 7). `long_context` keeps the limits and the spectrum; the shares of the limit are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.lab.traces.generators.request_lengths import (
    LengthDistribution,
    LengthPairs,
    LogNormalLengths,
)
from tokenflow_sgl.lab.traces.parameters import IntArray
from tokenflow_sgl.lab.traces.request import TraceError


@dataclass(frozen=True, slots=True)
class MixPart:
    """A class of requests: how common it is, relative to the others, and how long it is."""

    weight: float
    prompt: LengthDistribution
    output: LengthDistribution


@dataclass(frozen=True, slots=True)
class LengthMix:
    """Classes of requests, and the longest context of any of them.

    Attributes:
        parts: The classes.
        max_tokens: Prompt plus output may be this long; a longer prompt is cut, for its output is
            what the class is about. Outputs are cut to half of it.
    """

    parts: tuple[MixPart, ...]
    max_tokens: int

    def __post_init__(self) -> None:
        if not self.parts or not all(0 < part.weight < float("inf") for part in self.parts):
            raise TraceError("LengthMix: parts must be given, each with a weight above 0")
        if self.max_tokens < 2:
            raise TraceError(f"LengthMix: max_tokens is {self.max_tokens}; allowed is at least 2")

    def pairs(self, rng: np.random.Generator, count: int) -> tuple[IntArray, IntArray]:
        """See `LengthPairs.pairs`."""
        weights = np.array([part.weight for part in self.parts])
        classes = rng.choice(len(self.parts), count, p=weights / weights.sum())
        prompts, outputs = np.empty(count, np.int64), np.empty(count, np.int64)
        for index, part in enumerate(self.parts):
            mine = classes == index
            prompts[mine] = part.prompt.sample(rng, int(mine.sum()))
            outputs[mine] = part.output.sample(rng, int(mine.sum()))
        outputs = np.minimum(outputs, self.max_tokens // 2)
        return np.minimum(prompts, self.max_tokens - outputs), outputs


def long_context(max_tokens: int, long_share: float = 0.5) -> LengthMix:
    """Four classes, short and long prompts with short and long answers, independent of each other.

    Means as shares of `max_tokens`: prompts 1/32 and 1/2, answers 1/64 and 1/8; log-normal with a
    coefficient of variation of 0.6.

    Args:
        max_tokens: Longest context, tokens.
        long_share: Share of long prompts, and of long answers, 0 to 1 (excluded). OrbitFlow's
            stress test raises it.

    Raises:
        TraceError: `max_tokens` below 1024, or `long_share` out of range.
    """
    if max_tokens < 1024:
        raise TraceError(f"long_context: max_tokens is {max_tokens}; allowed is at least 1024")
    if not 0 < long_share < 1:
        raise TraceError(f"long_context: long_share is {long_share!r}; allowed is between 0 and 1")
    prompts = ((1 - long_share, max_tokens / 32), (long_share, max_tokens / 2))
    outputs = ((1 - long_share, max_tokens / 64), (long_share, max_tokens / 8))
    return LengthMix(
        tuple(
            MixPart(
                prompt_share * output_share,
                LogNormalLengths(prompt_mean, 0.6, high=max_tokens),
                LogNormalLengths(output_mean, 0.6, high=max_tokens),
            )
            for prompt_share, prompt_mean in prompts
            for output_share, output_mean in outputs
        ),
        max_tokens,
    )


MIXES: Mapping[str, LengthPairs] = {
    f"long-context-{limit}k": long_context(1024 * limit) for limit in (8, 32, 128)
}
"""The mixes of OrbitFlow's three context limits, by name."""
