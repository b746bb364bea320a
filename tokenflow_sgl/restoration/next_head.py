"""The decision before each chunk of a restoration: how much of the head is computed yet.

One rule, for the engine and the simulator. What it is decided by may be replaced: a planner is
anything with the functions of `HeadPlanner`.
"""

from __future__ import annotations

from typing import Protocol, TypedDict

from tokenflow_sgl.restoration.layer_wise import layers_are_sooner, more_layers
from tokenflow_sgl.restoration.token_wise import Fetch, Seconds, alone_is_sooner, head_tokens


class Known(TypedDict):
    """What the functions of a planner are told besides; see `head_tokens`."""

    compute: Seconds
    fetch: Fetch
    page: int
    lead: float


class HeadPlanner(Protocol):
    """Says how far a head goes."""

    def head_tokens(
        self,
        prefix: int,
        gap: int,
        *,
        compute: Seconds,
        fetch: Fetch,
        page: int,
        lead: float = 0.0,
        wait: float = 0.0,
    ) -> int:
        """Tokens of the head that are still to be computed; see `restoration.head_tokens`."""
        ...

    def alone(
        self,
        prefix: int,
        missing: int,
        end: int,
        suffix: int,
        *,
        compute: Seconds,
        fetch: Fetch,
        page: int,
        lead: float = 0.0,
        gain: float = 0.0,
    ) -> bool:
        """Whether to compute all of it; see `restoration.alone_is_sooner`."""
        ...

    def by_layers(
        self,
        prefix: int,
        gap: int,
        suffix: int,
        *,
        layers: int,
        compute: Seconds,
        fetch: Fetch,
        page: int,
        lead: float = 0.0,
        gain: float = 0.0,
    ) -> bool:
        """Whether to restore by layers; see `restoration.layers_are_sooner`."""
        ...

    def more_layers(
        self,
        prefix: int,
        gap: int,
        suffix: int,
        *,
        layers: int,
        computed: int,
        landed: int,
        compute: Seconds,
        fetch: Fetch,
        page: int,
        lead: float = 0.0,
        wait: float = 0.0,
    ) -> int:
        """Layers that are computed next; see `restoration.more_layers`."""
        ...


class MeetingPoint:
    """Both sources are done at the same time, unless computing alone is sooner."""

    head_tokens = staticmethod(head_tokens)
    alone = staticmethod(alone_is_sooner)
    by_layers = staticmethod(layers_are_sooner)
    more_layers = staticmethod(more_layers)


def next_head(
    planner: HeadPlanner,
    prefix: int,
    end: int,
    landed: int,
    suffix: int,
    known: Known,
    wait: float = 0.0,
) -> int | None:
    """Tokens of the head that are still to be computed from `prefix` on.

    Args:
        planner: Decides.
        prefix: Tokens whose KV is on the device or the host.
        end: Tokens of the stored prefix.
        landed: Tokens of it, from its end, that have arrived, fewer than `end - prefix`.
        suffix: Tokens behind it, which are computed in any case.
        known: Of the device and the link.
        wait: Seconds that are not worth a step more: waiting is rather chosen for than to start a
            chunk, and computing alone than to save less.

    Returns:
        0: none, the rest arrives soon enough. None: all of it is computed, with the suffix, and
        what is loaded of it is of no use.
    """
    missing = end - landed - prefix
    if planner.alone(prefix, missing, end, suffix, gain=wait, **known):
        return None
    head = planner.head_tokens(prefix, missing, wait=wait, **known)
    return None if head >= missing and not landed else head
