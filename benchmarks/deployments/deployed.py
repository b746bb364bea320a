"""What is deployed: devices, models, and the traffic that they serve.

The traffic is generated, in the shape of public traces, so that it is long enough for any device
and that each part of it is known. Where a number below has a trace beside it, the trace's own is in
brackets; the others are choices. No trace states a limit: clients allow 4,096 tokens, or 32,768
where answers begin with thinking (`client_limits`), and no server knows an answer's length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tokenflow_sgl.lab.traces import Trace
from tokenflow_sgl.lab.traces.generators.arrivals import PoissonArrivals
from tokenflow_sgl.lab.traces.generators.generate import TraceConfig, make_trace
from tokenflow_sgl.lab.traces.generators.reading_rates import RateMix
from tokenflow_sgl.lab.traces.generators.request_lengths import LogNormalLengths, SeparateLengths
from tokenflow_sgl.lab.traces.generators.sessions import SessionConfig
from tokenflow_sgl.lab.traces.parameters import stream
from tokenflow_sgl.lab.traces.transform import fit_context

READERS = RateMix((10.0, 15.0, 20.0, 30.0))
"""Tokens per second, equally common."""
SEED = 0


@dataclass(frozen=True, slots=True)
class Thinking:
    """How much of an answer is thinking: a normal share, cut to `low` and `high`."""

    mean: float
    sd: float
    low: float
    high: float

    def of(self, trace: Trace) -> Trace:
        """The trace with thinking in each of its answers."""
        drawn = stream(SEED, "thinking").normal(self.mean, self.sd, len(trace.requests))
        shares = np.clip(drawn, self.low, self.high).tolist()
        return replace(
            trace,
            requests=tuple(
                replace(request, reasoning_tokens=int(share * request.output_tokens))
                for request, share in zip(trace.requests, shares, strict=True)
            ),
            notes=(*trace.notes, f"{self.mean:.0%} of an answer is thinking, on average."),
        )


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests or conversations of a kind.

    Attributes:
        title: In a line of the page.
        lengths: Of messages and answers.
        max_context: Tokens of a prompt and its answer at most; a conversation ends before that.
        sessions: Makes each arrival a conversation; None: independent requests.
        thinking: Part of each answer; None: none.
    """

    title: str
    lengths: SeparateLengths
    max_context: int
    sessions: SessionConfig | None = None
    thinking: Thinking | None = None

    def trace(self, name: str, rate: float, duration_s: float) -> Trace:
        """So many arrivals per second, for so long."""
        made = make_trace(
            TraceConfig(
                name,
                PoissonArrivals(rate),
                self.lengths,
                duration_s=duration_s,
                rates=READERS,
                sessions=self.sessions,
                seed=SEED,
            )
        )
        made = fit_context(made, self.max_context)
        return self.thinking.of(made) if self.thinking else made


TRAFFIC: Mapping[str, Traffic] = {
    # ShareGPT: 5.4 turns, messages of 134 tokens (cv 3.0), answers of 439 (cv 0.6).
    "chat": Traffic(
        "conversations of 4 turns; messages of 134 tokens, answers of 439, 20 s of thought",
        SeparateLengths(
            LogNormalLengths(134, 2.0, low=4, high=2048),
            LogNormalLengths(439, 0.6, low=4, high=2048),
        ),
        8_192,
        SessionConfig(turns=4, think_s=20, system_tokens=500),
    ),
    # Mooncake's conversations: prompts of 12,035 tokens (cv 1.3), answers of 343 (cv 0.7). Beyond
    # 32k the prefill alone takes the 2 s that serve a reader well, whatever the schedule.
    "long": Traffic(
        "prompts of 12,000 tokens, at most 32,768; answers of 343",
        SeparateLengths(
            LogNormalLengths(12_000, 0.8, low=500, high=32_768),
            LogNormalLengths(343, 0.7, low=4, high=4096),
        ),
        36_864,
    ),
    # DeepSeek-R1 in ServeGen: prompts of 714 tokens (cv 3.9), answers of 1,317 (cv 1.4), of which
    # 64 % are thinking (sd 21 %).
    "thinking": Traffic(
        "prompts of 700 tokens; answers of 1,300, of which 64 % are thinking",
        SeparateLengths(
            LogNormalLengths(700, 2.0, low=8, high=16_384),
            LogNormalLengths(1_300, 1.2, low=16, high=16_384),
        ),
        32_768,
        thinking=Thinking(0.64, 0.21, 0.05, 0.95),
    ),
    # Runs of mini-swe-agent: 40 turns, each with 303 tokens more (cv 2.1) and 276 of answer
    # (cv 2.9), 3.5 s apart, after a prompt of 1,840 at first. Here fewer turns, after a longer one.
    "agents": Traffic(
        "12 turns 3.5 s apart on one of 4 system prompts of 4,000 tokens; 300 tokens more each "
        "time, answers of 276",
        SeparateLengths(
            LogNormalLengths(300, 1.5, low=8, high=4096),
            LogNormalLengths(276, 1.5, low=8, high=4096),
        ),
        32_768,
        SessionConfig(turns=12, think_s=3.5, system_tokens=4_000, groups=4),
    ),
}
"""By name."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model on a device, or on a group, and what comes to it.

    Attributes:
        device: A name of `DEVICES`.
        model: A name of `MODELS`.
        traffic: A name of `TRAFFIC`.
        rate: Conversations or requests per second, near what stock SGLang carries, so that the
            search for that is short.
        duration_s: Seconds in which they come.
    """

    device: str
    model: str
    traffic: str
    rate: float
    duration_s: float

    def trace(self) -> Trace:
        """Its traffic."""
        name = f"{self.device}-{self.traffic}"
        return TRAFFIC[self.traffic].trace(name, self.rate, self.duration_s)


DEPLOYMENTS: Mapping[str, Deployment] = {
    f"{each.device}-{each.traffic}": each
    for each in (
        # 8B leave 15,812 KV tokens, of which SGLang reserves up to 4,096 for each answer.
        Deployment("rtx4090", "qwen2.5-7b", "chat", 0.155, 1_200),
        Deployment("l40s", "qwen3-8b", "agents", 0.064, 1_200),
        Deployment("a100", "qwen3-8b", "thinking", 1.5, 400),
        Deployment("h100", "llama3-8b", "chat", 3.6, 240),
        Deployment("h100x2", "qwen3-32b", "thinking", 3.0, 300),
        Deployment("h200", "llama3-8b", "long", 0.24, 1_500),
        Deployment("b200", "qwen3-32b", "agents", 0.39, 300),
        Deployment("h100x4", "llama3-70b", "chat", 2.3, 240),
        Deployment("a100x4", "llama3-70b", "thinking", 0.2, 1_800),
        Deployment("h100x8", "qwen3-235b-a22b", "agents", 0.23, 400),
        Deployment("h200x8", "qwen3-235b-a22b", "long", 0.21, 1_500),
    )
}
"""By name. Each device, each kind of model and each kind of traffic is among them."""
