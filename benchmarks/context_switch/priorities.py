"""Policies for `--tokenflow-policy`, which calls what it is given without arguments.

FastSwitch's priorities, updated 0.02 and 0.04 times per iteration, and such as stay, as many as the
burst benchmark's `stock, priorities` has. `Swaps`: with HiCache as it is; the others write and load
KV ahead.
"""

from __future__ import annotations

from functools import partial

from tokenflow_sgl.policy.baselines import (
    FixedPriorityPolicy,
    MarkovPriorityPolicy,
    RandomPriorityPolicy,
)

Markov2 = partial(MarkovPriorityPolicy, 0.02)
Markov2Swaps = partial(MarkovPriorityPolicy, 0.02, ahead=False)
Markov4 = partial(MarkovPriorityPolicy, 0.04)
Markov4Swaps = partial(MarkovPriorityPolicy, 0.04, ahead=False)
Random2 = partial(RandomPriorityPolicy, 0.02)
Random2Swaps = partial(RandomPriorityPolicy, 0.02, ahead=False)
Random4 = partial(RandomPriorityPolicy, 0.04)
Random4Swaps = partial(RandomPriorityPolicy, 0.04, ahead=False)
Fixed = partial(FixedPriorityPolicy, 4)
FixedSwaps = partial(FixedPriorityPolicy, 4, ahead=False)
