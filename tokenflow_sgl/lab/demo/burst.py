"""The burst of the demo: many readers at one moment, more than the KV cache holds."""

from __future__ import annotations

from dataclasses import dataclass

from tokenflow_sgl.lab.traces import Trace, TraceConfig, make_trace
from tokenflow_sgl.lab.traces.generators.arrivals import BurstArrivals
from tokenflow_sgl.lab.traces.generators.reading_rates import RateMix
from tokenflow_sgl.lab.traces.generators.request_lengths import NormalLengths, SeparateLengths

RATES = RateMix((8.0, 10.0, 12.0, 15.0, 20.0))
"""Readers, tokens per second: slow ones, fast ones, and some who skim."""
PROMPT_TOKENS, ANSWER_TOKENS = 256, 384
"""Mean lengths."""
SPREAD_S = 0.5
"""All ask within so many seconds."""


@dataclass(frozen=True, slots=True)
class Burst:
    """What the demo asks of each server; equal bursts are equal requests.

    Attributes:
        readers: Number of requests.
        kv_tokens: KV cache of the server, tokens.
        seed: Seed of everything that is drawn.
    """

    readers: int = 60
    kv_tokens: int = 12_000
    seed: int = 0

    def trace(self) -> Trace:
        """The trace of this burst, with all of its requests.

        Answers end by themselves: the clients send one limit for all, so that no server knows when.
        `ignore_eos` is not set: it makes stock SGLang reserve memory for the whole answer at
        admission, which would weaken the baseline.
        """
        return make_trace(
            TraceConfig(
                "demo",
                BurstArrivals(spread_s=SPREAD_S),
                SeparateLengths(NormalLengths(PROMPT_TOKENS), NormalLengths(ANSWER_TOKENS)),
                requests=self.readers,
                rates=RATES,
                seed=self.seed,
                note=f"The demo's burst: {self.readers} requests within {SPREAD_S:g} s, mean "
                f"lengths {PROMPT_TOKENS} in and {ANSWER_TOKENS} out, readers of {RATES} tokens/s.",
            )
        )
