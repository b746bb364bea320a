"""Priorities for `--tokenflow-policy`, which calls a class without arguments."""

from __future__ import annotations

from tokenflow_sgl.policy.baselines import (
    FixedPriorityPolicy,
    MarkovPriorityPolicy,
    RandomPriorityPolicy,
)

FREQUENCY = 0.02
"""Updates per iteration, the lower one of the paper's."""
PRIORITY_LEVELS = 4
"""Of the priorities that stay: those of the burst benchmark's `stock, priorities`."""


class Markov(MarkovPriorityPolicy):
    """With locality; KV is written and loaded ahead."""

    def __init__(self) -> None:
        super().__init__(FREQUENCY)


class MarkovSwaps(MarkovPriorityPolicy):
    """With locality; HiCache as it is."""

    def __init__(self) -> None:
        super().__init__(FREQUENCY, ahead=False)


class Random(RandomPriorityPolicy):
    """Without locality; KV is written and loaded ahead."""

    def __init__(self) -> None:
        super().__init__(FREQUENCY)


class RandomSwaps(RandomPriorityPolicy):
    """Without locality; HiCache as it is."""

    def __init__(self) -> None:
        super().__init__(FREQUENCY, ahead=False)


class Fixed(FixedPriorityPolicy):
    """As SGLang's priorities, as many as its contender has; KV is written and loaded ahead."""

    def __init__(self) -> None:
        super().__init__(PRIORITY_LEVELS)


class FixedSwaps(FixedPriorityPolicy):
    """As SGLang's priorities; HiCache as it is."""

    def __init__(self) -> None:
        super().__init__(PRIORITY_LEVELS, ahead=False)
