"""Memory that is kept free so that running streams can go on decoding.

Part of the contract: a policy plans with the same reserves that a body's admission keeps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

DECODE_MARGIN_STEPS = 4
"""Decode steps that must fit, or streams are preempted now (draining takes one)."""
DECODE_TARGET_STEPS = 24
"""Decode steps that fit after such a preemption, and that admission reserves for a stream."""


@dataclass(frozen=True, slots=True)
class Growth:
    """How the KV of streams that decode grows.

    Attributes:
        page_size: Tokens of a page.
        per_step: Tokens that a decode step adds to a stream, on average.
        ahead: Tokens beyond its own that a stream holds while it decodes: the slots of its drafts.
    """

    page_size: int = 1
    per_step: float = 1.0
    ahead: int = 0

    def tokens(self, steps: int) -> int:
        """Tokens that one stream needs for `steps` more decode steps, drafts included."""
        return self.ahead + math.ceil(steps * self.per_step)

    def reserve(self, batch: int, steps: int) -> int:
        """Tokens that `batch` streams need for `steps` more decode steps, in whole pages.

        With pages, a stream needs a fresh page every page_size tokens and all streams may need it
        at once, so a page per stream is the least. A stream that decodes already holds the slots of
        its drafts; they are counted all the same, since a step may accept all of them.
        """
        return batch * -(-self.tokens(steps) // self.page_size) * self.page_size

    @property
    def headroom(self) -> int:
        """Tokens that admission reserves for a stream beyond its context, to decode for a while.

        SGLang's own reserve is a share of all that the stream may ever generate.
        """
        return max(self.tokens(DECODE_TARGET_STEPS), self.page_size)
