"""Memory that is kept free so that running streams can go on decoding.

Part of the contract: a policy plans with the same reserves that a body's admission keeps.
"""

from __future__ import annotations

from tokenflow_sgl.contract.memory import Memory

DECODE_MARGIN_STEPS = 4
"""Decode steps that must fit, or streams are preempted now (draining takes one)."""
DECODE_TARGET_STEPS = 24
"""Decode steps that fit after such a preemption, and that admission reserves for a stream."""


def headroom(page_size: int) -> int:
    """Tokens that admission reserves for a stream beyond its context, to decode for a while.

    SGLang's own reserve is a share of all that the stream may ever generate.
    """
    return max(DECODE_TARGET_STEPS, page_size)


def decode_reserve(memory: Memory, batch: int, steps: int) -> int:
    """Tokens that `batch` streams need for `steps` more decode steps, in whole pages."""
    return pages_reserve(memory.page_size, batch, steps)


def pages_reserve(page_size: int, batch: int, steps: int) -> int:
    """The same, by the tokens of a page.

    With pages, a stream needs a fresh page every page_size steps and all streams may need it at
    once, so a page per stream is the least.
    """
    return batch * -(-steps // page_size) * page_size
