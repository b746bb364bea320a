"""Which way a stored prefix is restored, from where, and why.

CacheFlow section 3.1: token-wise from a crossover length on, layer-wise below it (Algorithm 1,
line 3). Here either is taken only where it beats the better single source by a stated gain:
from host memory, over a link many times faster than computing, it mostly does not.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tokenflow_sgl.restoration.channel import Channel
from tokenflow_sgl.restoration.layer_wise import best_layers
from tokenflow_sgl.restoration.prefix_way import PrefixWay
from tokenflow_sgl.restoration.token_wise import Seconds, best_split


class WayReason(enum.Enum):
    """Why a way was chosen."""

    NOTHING = "nothing"
    """No KV is missing."""
    NO_SOURCE = "no-source"
    """No channel brings anything: it is computed."""
    COMPUTE = "compute"
    """No split is done before computing alone."""
    LOAD = "load"
    """No split is done before loading alone."""
    SMALL_GAIN = "small-gain"
    """A split is done sooner than one source alone, by less than the gain that is asked for."""
    BOTH = "both"
    """Both sources at once are done sooner."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A prompt of which a part is stored.

    Attributes:
        gap: Tokens whose KV is stored and not on the device, >= 0.
        prefix: Tokens before them whose KV is on the device, >= 0.
        suffix: Tokens behind them, which are computed in any case, >= 0.
    """

    gap: int
    prefix: int = 0
    suffix: int = 0

    def __post_init__(self) -> None:
        for field in ("gap", "prefix", "suffix"):
            if getattr(self, field) < 0:
                raise ValueError(f"{field} is {getattr(self, field)!r}; allowed is 0 or more")


@dataclass(frozen=True, slots=True)
class RestoreTerms:
    """What decides, beside the prompt and the channels.

    Attributes:
        compute: Seconds of computing.
        page: Tokens of a page, >= 1.
        layers: Of the model, for the layer-wise way; 0: the model has no such way.
        crossover: Tokens from which on the token-wise way is taken rather than the layer-wise
            one (`crossover_length`); None: whichever is done sooner.
        gain: Seconds by which a split has to beat the better single source, >= 0.0.
        overhead: Seconds of a step that fewer layers do not save, >= 0.0.
    """

    compute: Seconds
    page: int
    layers: int = 0
    crossover: int | None = None
    gain: float = 0.0
    overhead: float = 0.0


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """How a stored prefix comes to the device.

    Attributes:
        way: How.
        split: Tokens or layers that are computed, where it is split by either; else 0.
        channel: Name of the channel that loads; empty: none does.
        seconds: From now until all of the prompt has its KV, the suffix included.
        saved: Seconds less than with the better single source.
        reason: Why.
    """

    way: PrefixWay
    split: int
    channel: str
    seconds: float
    saved: float
    reason: WayReason


def plan(stored: Stored, channels: Sequence[Channel], terms: RestoreTerms) -> RestorePlan:
    """The way that is done soonest.

    Args:
        stored: The prompt.
        channels: Those that have all of the gap; the first one of equals is taken.
        terms: What decides.
    """
    if not stored.gap:
        seconds = terms.compute(stored.prefix, stored.suffix)
        return RestorePlan(PrefixWay.RECOMPUTE, 0, "", seconds, 0.0, WayReason.NOTHING)
    computed = terms.compute(stored.prefix, stored.gap + stored.suffix)
    alone = RestorePlan(PrefixWay.RECOMPUTE, 0, "", computed, 0.0, WayReason.COMPUTE)
    both: RestorePlan | None = None
    for channel in channels:
        if channel.rate == 0.0:
            continue
        loaded = _load(stored, channel, terms)
        if loaded < alone.seconds:
            alone = RestorePlan(PrefixWay.LOAD, 0, channel.name, loaded, 0.0, WayReason.LOAD)
        split = _both(stored, channel, terms)
        if split is not None and (both is None or split.seconds < both.seconds):
            both = split
    if both is None:
        if not any(channel.rate for channel in channels):
            return RestorePlan(PrefixWay.RECOMPUTE, 0, "", computed, 0.0, WayReason.NO_SOURCE)
        return alone
    saved = alone.seconds - both.seconds
    if saved <= 0.0:
        return alone
    if saved < terms.gain:
        return RestorePlan(alone.way, 0, alone.channel, alone.seconds, 0.0, WayReason.SMALL_GAIN)
    return RestorePlan(both.way, both.split, both.channel, both.seconds, saved, WayReason.BOTH)


def crossover_length(lengths: Iterable[int], channel: Channel, terms: RestoreTerms) -> int | None:
    """The least of these lengths at which the token-wise way is done no later than the layer-wise.

    CacheFlow section 3.1: L_delta = min{N | T_token(N) <= T_layer(N)}, which the paper profiles;
    here it is computed from the costs. None: there is none among them.

    Args:
        lengths: Tokens, in whole pages.
        channel: Loads.
        terms: What decides; its `crossover` is not looked at.
    """
    for length in sorted(lengths):
        tokens = best_split(
            0, length, compute=terms.compute, fetch=channel.seconds, page=terms.page
        )
        layers = best_layers(
            0,
            length,
            layers=terms.layers,
            compute=terms.compute,
            fetch=channel.seconds,
            overhead=terms.overhead,
        )
        if tokens.seconds <= layers.seconds:
            return length
    return None


def _load(stored: Stored, channel: Channel, terms: RestoreTerms) -> float:
    """Seconds of loading the gap and computing what comes behind it."""
    load = channel.seconds(stored.gap)
    suffix = terms.compute(stored.prefix + stored.gap, stored.suffix)
    if channel.beside:
        # Each layer computes once its KV is there: the last one after all of the load.
        return max(load + (suffix / terms.layers if terms.layers else 0.0), suffix)
    return load + suffix


def _both(stored: Stored, channel: Channel, terms: RestoreTerms) -> RestorePlan | None:
    """The better of the two splits, or the one that the crossover asks for."""
    suffix = terms.compute(stored.prefix + stored.gap, stored.suffix)
    found = [(math.inf, PrefixWay.TOKENS, 0)]
    crossover = terms.crossover
    if crossover is None or stored.gap >= crossover or not terms.layers:
        tokens = best_split(
            stored.prefix,
            stored.gap,
            compute=terms.compute,
            fetch=channel.seconds,
            page=terms.page,
        )
        if 0 < tokens.head < stored.gap:
            found.append((tokens.seconds + suffix, PrefixWay.TOKENS, tokens.head))
    if terms.layers and (crossover is None or stored.gap < crossover):
        layers = best_layers(
            stored.prefix,
            stored.gap,
            layers=terms.layers,
            compute=terms.compute,
            fetch=channel.seconds,
            overhead=terms.overhead,
            suffix=stored.suffix,
        )
        if 0 < layers.layers < terms.layers:
            found.append((layers.seconds, PrefixWay.LAYERS, layers.layers))
    seconds, way, split = min(found, key=lambda item: item[0])
    if not split:
        return None
    return RestorePlan(way, split, channel.name, seconds, 0.0, WayReason.BOTH)
