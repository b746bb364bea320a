"""The ways of a stored prefix to the device."""

from __future__ import annotations

import enum


class PrefixWay(enum.Enum):
    """How a stored prefix comes to the device."""

    LOAD = "load"
    """Copied from where it is stored."""
    RECOMPUTE = "recompute"
    """Computed from its tokens."""
    TOKENS = "tokens"
    """Its first tokens computed, the others copied (CacheFlow, token-wise)."""
    LAYERS = "layers"
    """Its first layers computed, the others copied (CacheFlow, layer-wise)."""
