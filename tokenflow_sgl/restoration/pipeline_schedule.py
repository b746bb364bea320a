"""Pipeline stages that restore one prefix, chunk by chunk: what `Pipeline` predicts, played.

Each stage has a device and a link. A chunk is decided on when its stage's device is free, with what
has landed by then. With stored boundary activations (CacheFlow section 3.2) each stage does so by
itself; its link reads the activations of a chunk before it goes on with the tail. Without them a
chunk goes through the stages one after the other, as in a prefill: the second stage computes the
first chunk while the first one computes the second. The paper compares with stages that wait for
all of the head; that is `Pipeline.in_turn`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from tokenflow_sgl.restoration.channel import Channel
from tokenflow_sgl.restoration.multi_gpu import Pipeline
from tokenflow_sgl.restoration.token_wise import Seconds, head_tokens


@dataclass(frozen=True, slots=True)
class StagedRestoration:
    """When a prefix is restored on all stages of a pipeline, and what each computed.

    Attributes:
        seconds: Until the last stage has all of its KV.
        heads: Tokens that each stage computed; it loaded the others.
    """

    seconds: float
    heads: tuple[int, ...]


def play_stages(
    pipeline: Pipeline,
    gap: int,
    *,
    compute: Seconds,
    channel: Channel,
    chunk: int,
    page: int,
    stored: bool,
) -> StagedRestoration:
    """Restore a prefix of which nothing is on the devices.

    Args:
        pipeline: The stages.
        gap: Tokens of the prefix, >= 1.
        compute: Seconds of computing one chunk through all stages, one after the other.
        channel: Of each stage: its rate is in tokens of KV of all layers.
        chunk: Tokens of a step at most, whole pages.
        page: Tokens of a page.
        stored: Boundary activations were stored with the KV.

    Raises:
        ValueError: `gap` or the channel's rate is not above 0, or a chunk is no whole number of
            pages.
    """
    if gap < 1:
        raise ValueError(f"gap is {gap!r}; allowed is 1 or more")
    if not channel.rate > 0.0:
        raise ValueError(f"rate is {channel.rate!r}; allowed is above 0")
    if chunk < page or chunk % page:
        raise ValueError(f"chunk is {chunk!r}; allowed are multiples of {page}")
    stage = _Stage(gap, pipeline.stages, compute, channel, chunk, page)
    if not stored:
        seconds, head = stage.through_all()
        return StagedRestoration(seconds, (head,) * pipeline.stages)
    first, other = stage.alone(0.0), stage.alone(pipeline.boundary)
    ends = [first] + [other] * (pipeline.stages - 1)
    return StagedRestoration(max(seconds for seconds, _ in ends), tuple(head for _, head in ends))


@dataclass(frozen=True, slots=True)
class _Stage:
    gap: int
    stages: int
    whole: Seconds
    channel: Channel
    chunk: int
    page: int

    @property
    def rate(self) -> float:
        """Tokens of its own KV per second."""
        return self.channel.rate * self.stages

    def alone(self, boundary: float) -> tuple[float, int]:
        """When it has all, and its head.

        boundary: what a computed token is read from over its own KV, in bytes.
        """

        def own(prefix: int, tokens: int) -> float:
            return max(self._seconds(prefix, tokens), tokens * boundary / self.rate)

        head, free, reading = 0, 0.0, 0.0
        while True:
            missing = self.gap - head - self._landed(free - reading)
            tokens = 0
            if boundary < 1.0:
                left = functools.partial(self._left, missing, boundary)
                tokens = head_tokens(head, missing, compute=own, fetch=left, page=self.page)
            if not tokens:
                lands = self.channel.latency + reading + (self.gap - head) / self.rate
                return max(free, lands if head < self.gap else 0.0), head
            tokens = min(tokens, self.chunk)
            # Its activations are read while the chunk before it is computed.
            reading += tokens * boundary / self.rate
            read = self.channel.latency + reading if boundary else 0.0
            free = max(free, read) + self._seconds(head, tokens)
            head += tokens

    def through_all(self) -> tuple[float, int]:
        """Seconds and head of stages that give chunks on to the next one."""

        def own(prefix: int, tokens: int) -> float:
            chunks = -(-tokens // self.chunk)
            return self._seconds(prefix, tokens) * (chunks + self.stages - 1) / chunks

        head, free = 0, [0.0] * self.stages
        while True:
            missing = self.gap - head - self._landed(free[0])
            left = functools.partial(self._left, missing, 0.0)
            tokens = head_tokens(head, missing, compute=own, fetch=left, page=self.page)
            if not tokens:
                lands = self.channel.latency + (self.gap - head) / self.rate
                return max(free[-1], lands if head < self.gap else 0.0), head
            tokens = min(tokens, self.chunk)
            free = list(self._ends(free, self._seconds(head, tokens)))
            head += tokens

    def _left(self, missing: int, boundary: float, tokens: int) -> float:
        """Seconds of loading so many of the missing ones, and what the others are computed from."""
        return (tokens + (missing - tokens) * boundary) / self.rate

    def _ends(self, free: list[float], seconds: float) -> Iterator[float]:
        """When each stage has computed a chunk."""
        before = 0.0
        for each in free:
            before = max(before, each) + seconds
            yield before

    def _landed(self, seconds: float) -> int:
        """Tokens of the tail that have arrived after so long, whole pages."""
        tokens = max(seconds - self.channel.latency, 0.0) * self.rate
        return min(int(tokens) // self.page * self.page, self.gap)

    def _seconds(self, prefix: int, tokens: int) -> float:
        """Seconds in which one stage computes its layers."""
        return self.whole(prefix, tokens) / self.stages
