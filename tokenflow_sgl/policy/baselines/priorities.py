"""Highest priority first while priorities change: the context switch load of FastSwitch (2024).

FastSwitch's evaluation (section 4.2) changes the requests' priorities from outside, at random or
with temporal locality, and preempts what falls behind. Here a request's priority is a hash of
itself and of the number of the update, so that the policy stays a function of what it sees.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokenflow_sgl.contract import FloatArray, IntArray, State
from tokenflow_sgl.policy.baselines.ordered import OrderedPolicy

ITERATION_SECONDS = 0.025
"""Of one engine iteration: FastSwitch counts updates per iteration, we per second."""
HISTORY = 64
"""Updates after which a priority was drawn anew for certain."""

UIntArray = NDArray[np.uint64]


class RandomPriorityPolicy(OrderedPolicy):
    """Every update draws all priorities anew, evenly from 0 to 1.

    Args:
        frequency: Updates per engine iteration; the paper's are 0.02 to 0.04.
        locality: Probability that a request keeps its priority over an update.
        ahead: KV is written to the host while streams run, and loaded beside the steps.
    """

    def __init__(
        self, frequency: float = 0.04, locality: float = 0.0, *, ahead: bool = True
    ) -> None:
        super().__init__(interval=ITERATION_SECONDS / frequency, ahead=ahead)
        self._locality = locality

    def rank(self, state: State, index: IntArray) -> FloatArray:
        """Rank streams by priority at the present update."""
        update = int(state.now / self.interval)
        name = _names(state, index)
        updates = np.arange(update, max(update - HISTORY, -1), -1, dtype=np.uint64)
        kept = _share(name[:, None] + _mixed(2 * updates + 1)) < self._locality
        kept[:, -1] = False
        drawn = updates[np.argmin(kept, axis=1)]
        return -_share(name + _mixed(2 * drawn))


class MarkovPriorityPolicy(RandomPriorityPolicy):
    """Priorities with temporal locality: nine in ten are kept over an update."""

    def __init__(
        self, frequency: float = 0.04, locality: float = 0.9, *, ahead: bool = True
    ) -> None:
        super().__init__(frequency, locality, ahead=ahead)


class FixedPriorityPolicy(OrderedPolicy):
    """Priorities that stay: SGLang's priority scheduling, with cheap context switches.

    A request of more priority runs first and takes the place of one of less; first come first among
    equals.

    Args:
        levels: How many priorities there are; each is as likely.
        interval: Seconds between two rankings.
        ahead: KV is written to the host while streams run, and loaded beside the steps.
    """

    def __init__(self, levels: int, interval: float = 0.25, *, ahead: bool = True) -> None:
        super().__init__(interval=interval, ahead=ahead)
        self._levels = levels

    def rank(self, state: State, index: IntArray) -> FloatArray:
        """Rank streams by priority; they are in the order of their arrival."""
        return -np.floor(self._levels * _share(_names(state, index)))


def _names(state: State, index: IntArray) -> UIntArray:
    """A number for each stream, its own for as long as it lives."""
    streams = state.streams
    # A slot is used again by later requests: its arrival tells them apart.
    arrived = (streams.arrival[index] * 1e3).astype(np.int64).astype(np.uint64)
    return _mixed(streams.slot[index].astype(np.uint64) ^ _mixed(arrived))


def _mixed(value: UIntArray) -> UIntArray:
    """Well-mixed bits of each value: the finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    with np.errstate(over="ignore"):
        value = value + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))


def _share(value: UIntArray) -> FloatArray:
    """Even in [0, 1)."""
    return (_mixed(value) >> np.uint64(11)).astype(np.float64) / float(1 << 53)
