"""What ranks that restore the same prefixes tell each other, so that all of them do the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from tokenflow_sgl.engine.ranks import decides_alone, place_in_group
from tokenflow_sgl.engine.sglang.tree import Tree

UNKNOWN = -1.0
"""What ranks tell each other of a figure that is not known yet."""


class RestoringRanks:
    """One rank among those that restore together: what they have to agree on.

    Each method is a collective where there are several: all of them call it in the same pass.

    Args:
        tree_cache: SGLang's prefix tree, by which the ranks agree.
        parallel: SGLang's state of this process's ranks.
    """

    def __init__(self, tree_cache: Tree, parallel: Any) -> None:
        self._tree = tree_cache
        self._alone = decides_alone(parallel)
        self._leads = place_in_group(parallel) == 0

    def least(self, number: int) -> int:
        """The least of all ranks' numbers."""
        if self._alone:
            return number
        least = torch.tensor(number)
        self._tree._all_reduce(least, torch.distributed.ReduceOp.MIN)
        return int(least)

    def leaders(self, figures: Sequence[float]) -> list[float]:
        """The leader's figures, none of which is NaN or infinite; others say as many."""
        if self._alone:
            return list(figures)
        said = figures if self._leads else [math.inf] * len(figures)
        shared = torch.tensor(said, dtype=torch.float64)
        self._tree._all_reduce(shared, torch.distributed.ReduceOp.MIN)
        return [float(each) for each in shared]
