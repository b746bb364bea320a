"""Layer-wise restoration: the lower layers of a prefix are computed, the upper ones are loaded.

CacheFlow section 3.1: computing goes up from layer 0 for all tokens of the prefix, loading goes
down from the last layer. A layer needs the one below it and nothing above, so that computing can
stop at any of them. What computing costs is linear in the layers, long prefix or short; what it
saves against the token-wise way is the fixed cost of a step, which reads only the weights of the
layers that it computes. So it is for short prefixes, and the token-wise way, which computes only
the cheap part of the attention, for long ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenflow_sgl.restoration.token_wise import Fetch, Seconds


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """How a gap is restored by layers.

    Attributes:
        layers: Computed ones, from layer 0 on; the others are loaded.
        seconds: Until both are done.
    """

    layers: int
    seconds: float


def best_layers(
    prefix: int,
    gap: int,
    *,
    layers: int,
    compute: Seconds,
    fetch: Fetch,
    overhead: float = 0.0,
) -> LayerSplit:
    """The number of computed layers that is done soonest; 0 and all of them are one source alone.

    Args:
        prefix: Tokens before the gap whose KV is on the device.
        gap: Tokens whose KV is missing.
        layers: Of the model, >= 1.
        compute: Seconds of computing, all layers.
        fetch: Seconds until `n` tokens have arrived, all layers of them.
        overhead: Of the computing, seconds that fewer layers do not save: of the engine itself.

    Raises:
        ValueError: `layers` is below 1.
    """
    if layers < 1:
        raise ValueError(f"layers is {layers!r}; allowed is 1 or more")
    if gap <= 0:
        return LayerSplit(0, 0.0)
    whole = compute(prefix, gap)
    fixed = min(overhead, whole)

    def done(computed: int) -> float:
        share = computed / layers
        seconds = fixed + (whole - fixed) * share if computed else 0.0
        # So many tokens of all layers have as many bytes as all tokens of these layers.
        return max(seconds, fetch(-(-gap * (layers - computed) // layers)))

    best = min(range(layers + 1), key=done)
    return LayerSplit(best, done(best))
