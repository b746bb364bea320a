"""Pausing streams that are far ahead, when the rest runs faster without them.

On devices whose step time follows the KV that is read, a smaller batch yields nearly the
same tokens per second, and all of them go to readers who need them. Where that is not
so, parking costs raw throughput; hence the closed loop: the share of throughput that
parking must keep is raised when the measured throughput falls behind what the whole
batch would give, and lowered slowly otherwise.

While memory stays full, all steps look alike and the learned costs cannot tell a step's
constant part from its part per token: they may say that one stream alone is as fast as
fifty. So a batch is thinned by small steps, each of which teaches the costs something.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tokenflow_sgl.contract import IntArray, State
from tokenflow_sgl.contract.needs import most_streams, occupied
from tokenflow_sgl.policy.config import WorkingSetConfig
from tokenflow_sgl.policy.exchange import useful_band

SMALLEST_BATCH = 8
"""Batches below this are not worth thinning out."""
RAISE, LOWER = 0.01, 0.005
"""Steps of the closed loop per cycle. Up faster than down, but not by so much that the noise of
the measured throughput alone keeps the share at 1."""
THINNED = 0.05
"""Share of the running streams that one cycle may park."""


def next_share(state: State, config: WorkingSetConfig, share: float) -> float:
    """The share of raw decode throughput that parking must keep, adjusted by what was seen.

    share: What it was.
    """
    if not config.park:
        return 1.0
    if math.isnan(state.throughput) or state.costs.decode is None:
        return share
    load = _load(state)
    possible = _rate(state, load, load.streams)
    if state.throughput < config.park_target * possible:
        return min(1.0, share + RAISE)
    return max(config.park_floor, share - LOWER)


def parked(state: State, config: WorkingSetConfig, share: float) -> IntArray:
    """Indices of streams (running or paused) that should rest now, least progressed first."""
    streams = state.streams
    none = np.zeros(0, dtype=np.int64)
    if share >= 1.0 or state.costs.decode is None or len(streams.waiting_index):
        return none
    load = _load(state)
    if load.streams < SMALLEST_BATCH:
        return none
    keep = _smallest_batch(state, load, share)
    resting = streams.paused | (
        streams.running & streams.preemptible & (state.now - streams.since >= config.min_run)
    )
    resting_index = np.nonzero(resting)[0]
    band = useful_band(state, config, resting_index)
    ahead = resting_index[state.slack[resting_index] > band]
    ahead = ahead[np.argsort(streams.generated[ahead], kind="stable")]
    return ahead[: max(load.streams - keep, 0)]


def thinned(state: State, rest: IntArray) -> IntArray:
    """`rest` without the running streams that are too many to be parked in one cycle."""
    if not len(rest):
        return rest
    running = state.streams.running[rest]
    most = max(1, int(THINNED * np.count_nonzero(state.streams.running)))
    kept: IntArray = rest[~running | (np.cumsum(running) <= most)]
    return kept


class _Load(NamedTuple):
    """Streams that could decode: how many, their mean context, and of it what takes memory."""

    streams: int
    mean: float
    own: float


def _load(state: State) -> _Load:
    streams = state.streams
    begun = np.nonzero(~streams.waiting)[0]
    count = len(begun)
    if not count:
        return _Load(0, 0.0, 0.0)
    tokens, _ = occupied(state.memory, streams, begun)
    return _Load(count, int(streams.length.take(begun).sum()) / count, tokens / count)


def _rate(state: State, load: _Load, batch: int) -> float:
    """Modelled tokens per second of a decode batch; 0.0 while unknown."""
    mean, own = max(load.mean, 1.0), max(load.own, 1.0)
    fits = min(batch, state.memory.max_running, int(most_streams(state.memory, mean, own)))
    seconds = state.costs.token_seconds(fits, fits * load.mean)
    return fits / seconds if seconds > 0.0 else 0.0


def _smallest_batch(state: State, load: _Load, share: float) -> int:
    """The smallest batch that still yields `share` of the whole batch's rate (rate is monotone)."""
    goal = share * _rate(state, load, load.streams)
    low, high = 1, load.streams
    while low < high:
        middle = (low + high) // 2
        if _rate(state, load, middle) >= goal:
            high = middle
        else:
            low = middle + 1
    return low
