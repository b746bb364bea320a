"""What several devices change: each restores its own part of the KV.

CacheFlow section 3.2. Tensor-parallel ranks hold some heads of all layers and compute together, so
that they restore side by side, each its share of the bytes. Pipeline stages hold some layers, and a
stage needs the output of the one before it. Where these boundary activations are stored with the
KV, each stage computes its head without waiting for the others, and restoration takes `T* / S` with
S stages (equation 2).

Format: of each token, for each stage but the first one, the residual stream that enters the stage's
first layer: `hidden` values of the model's type, a vector per token, in pages like the KV. Written
at prefill, when the stage receives it, page by page with the KV of the same tokens. It is read for
computed tokens only, and takes link time that loading KV could have used; equation 2 leaves that
out, here it is counted.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tokenflow_sgl.restoration.channel import Channel
from tokenflow_sgl.restoration.token_wise import Fetch, Seconds, Split, best_split

VALUE_BYTES = 2
"""Of bfloat16."""


def sharded(channel: Channel, ranks: int, *, own_links: bool) -> Channel:
    """The channel of a tensor-parallel group, in tokens of which each rank loads its heads.

    Args:
        channel: Of one device that holds all heads.
        ranks: Of the group, >= 1.
        own_links: Each rank has such a link of its own, so that the group loads `ranks` times as
            fast. Else all share the one, and the sum of their bytes is what it was.

    Raises:
        ValueError: `ranks` is below 1.
    """
    if ranks < 1:
        raise ValueError(f"ranks is {ranks!r}; allowed is 1 or more")
    return dataclasses.replace(channel, rate=channel.rate * ranks) if own_links else channel


def boundary_bytes(hidden: int, value_bytes: int = VALUE_BYTES) -> int:
    """Bytes of one token's activation at one boundary between two stages."""
    return hidden * value_bytes


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Pipeline stages with equal shares of the layers, each with a link of its own.

    Attributes:
        stages: Number of them, >= 1.
        boundary: Bytes of a token's boundary activation over those of its KV in one stage, >= 0.0
            (`of`); 0.0 leaves the activations out, as the paper's equation does.

    Raises:
        ValueError: A value is outside its range.
    """

    stages: int
    boundary: float = 0.0

    def __post_init__(self) -> None:
        if self.stages < 1:
            raise ValueError(f"stages is {self.stages!r}; allowed is 1 or more")
        if not self.boundary >= 0.0:
            raise ValueError(f"boundary is {self.boundary!r}; allowed is 0 or more")

    @classmethod
    def of(cls, stages: int, *, hidden: int, kv_bytes_per_token: int) -> Pipeline:
        """The pipeline of a model, by its width and the bytes of KV per token over all layers."""
        return cls(stages, boundary_bytes(hidden) * stages / kv_bytes_per_token)

    def at_once(self, prefix: int, gap: int, *, compute: Seconds, fetch: Fetch, page: int) -> Split:
        """The best split where each stage computes from stored boundary activations.

        Args:
            prefix: Tokens before the gap whose KV is on the devices.
            gap: Tokens whose KV is missing.
            compute: Seconds of computing through all stages, one after the other.
            fetch: Seconds of loading the KV of `n` tokens of all layers over one link.
            page: Tokens of a page.
        """
        if self.boundary >= 1.0:
            # Reading what a token is computed from takes longer than reading its KV.
            return Split(0, self._fetch(gap, fetch))

        def own(prefix: int, tokens: int) -> float:
            # A stage cannot compute faster than its boundary activations arrive.
            read = self._fetch(round(tokens * self.boundary), fetch)
            return max(compute(prefix, tokens) / self.stages, read)

        def left(tokens: int) -> float:
            return self._fetch(tokens + round((gap - tokens) * self.boundary), fetch)

        return best_split(prefix, gap, compute=own, fetch=left, page=page)

    def in_turn(self, prefix: int, gap: int, *, compute: Seconds, fetch: Fetch, page: int) -> Split:
        """The best split without them: a stage computes its head after the stage before it.

        The heads go through all stages one after the other, the tails load everywhere meanwhile.
        Arguments as for `at_once`.
        """
        return best_split(
            prefix, gap, compute=compute, fetch=lambda tokens: self._fetch(tokens, fetch), page=page
        )

    def _fetch(self, tokens: int, fetch: Fetch) -> float:
        """Seconds of loading one stage's KV of these tokens."""
        return fetch(-(-tokens // self.stages))
