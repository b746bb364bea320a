"""The burst of the demo: many readers at nearly the same moment, more than the KV cache holds."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tokenflow_sgl.demo.client import StreamRequest


@dataclass(frozen=True)
class BurstConfig:
    """What the burst is made of; equal configs give equal bursts.

    Attributes:
        readers: Number of requests.
        span_s: All requests are sent within this many seconds.
        prompt_tokens: Shortest and longest prompt, tokens.
        output_tokens: Shortest and longest answer, tokens.
        rate: Slowest and fastest reader, tokens per second.
        token_ids: Prompts are random ids from this half-open range: no special tokens.
        seed: Seed of everything that is drawn.
    """

    readers: int = 56
    span_s: float = 0.3
    prompt_tokens: tuple[int, int] = (60, 200)
    output_tokens: tuple[int, int] = (150, 400)
    rate: tuple[float, float] = (8.0, 20.0)
    token_ids: tuple[int, int] = (3, 512)
    seed: int = 0


def make_burst(config: BurstConfig) -> tuple[StreamRequest, ...]:
    """Return the requests of the burst, in the order of their send times.

    Answers end by ``max_new_tokens`` and rely on a model that never ends one earlier. They do not
    set ``ignore_eos``: it makes stock SGLang reserve memory for the whole answer at admission,
    which would weaken the baseline.
    """
    rng = random.Random(config.seed)
    requests = [
        StreamRequest(
            prompt_ids=tuple(
                rng.randrange(*config.token_ids) for _ in range(rng.randint(*config.prompt_tokens))
            ),
            max_new_tokens=rng.randint(*config.output_tokens),
            rate=round(rng.uniform(*config.rate), 1),
            send_at_s=config.span_s * rng.random(),
        )
        for _ in range(config.readers)
    ]
    return tuple(sorted(requests, key=lambda request: request.send_at_s))


def make_warm_up(config: BurstConfig) -> tuple[StreamRequest, ...]:
    """Return a short burst of other prompts, for a fresh server to do its lazy work on."""
    # Far from the seeds of the bursts; not negative, for Python draws the same from -1 and 1.
    seed = config.seed + 1_000_003
    small = replace(config, readers=8, output_tokens=(24, 32), seed=seed)
    return make_burst(small)
