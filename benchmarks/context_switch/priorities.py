"""FastSwitch's priorities for `--tokenflow-policy`, which calls a class without arguments."""

from __future__ import annotations

from tokenflow_sgl.policy.baselines import MarkovPriorityPolicy, RandomPriorityPolicy

FREQUENCY = 0.02
"""Updates per iteration, the lower one of the paper's."""


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
