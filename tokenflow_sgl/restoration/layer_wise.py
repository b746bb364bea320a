"""Layer-wise restoration: the lower layers of a prefix are computed, the upper ones are loaded.

CacheFlow section 3.1: computing goes up from layer 0 for all tokens of the prefix, loading goes
down from the last layer. A layer needs the one below it and nothing above, so that computing can
stop at any of them. What computing costs is linear in the layers, long prefix or short; what it
saves against the token-wise way is the fixed cost of a step, which reads only the weights of the
layers that it computes. So it is for short prefixes, and the token-wise way, which computes only
the cheap part of the attention, for long ones.

What follows the prefix is computed with it as far as the computed layers go, and by itself above
them: its tokens need no step of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenflow_sgl.restoration.token_wise import Fetch, Seconds, best_split


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """How a gap is restored by layers.

    Attributes:
        layers: Computed ones, from the first that is not computed yet; the others are loaded.
        seconds: Until both are done, and what follows the gap is computed.
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
    suffix: int = 0,
    computed: int = 0,
    landed: int = 0,
    lead: float = 0.0,
) -> LayerSplit:
    """The number of computed layers that is done soonest; 0 and all of them are one source alone.

    Args:
        prefix: Tokens before the gap whose KV is on the device.
        gap: Tokens whose KV is missing.
        layers: Of the model, >= 1.
        compute: Seconds of computing, all layers.
        fetch: Seconds until `n` tokens more have arrived, all layers of them.
        overhead: Of the computing, seconds that fewer layers do not save: of the engine itself.
        suffix: Tokens behind the gap, which are computed in any case.
        computed: Layers that are computed already, from layer 0 on.
        landed: Layers that have arrived already, from the last one on.
        lead: Seconds before computing can go on.

    Raises:
        ValueError: `layers` is below 1.
    """
    if layers < 1:
        raise ValueError(f"layers is {layers!r}; allowed is 1 or more")
    if gap <= 0:
        return LayerSplit(0, 0.0)
    whole = compute(prefix, gap + suffix)
    alone = compute(prefix + gap, suffix) if suffix else 0.0
    fixed = min(overhead, whole)
    left = max(layers - computed - landed, 0)

    def done(more: int) -> float:
        seconds = lead + fixed + (whole - fixed) * more / layers if more else 0.0
        # So many tokens of all layers have as many bytes as all tokens of these layers.
        met = max(seconds, fetch(-(-gap * (left - more) // layers)))
        return met + alone * (layers - computed - more) / layers

    best = min(range(left + 1), key=done)
    return LayerSplit(best, done(best))


def more_layers(
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
    """Layers that are computed next, for all tokens of the gap and behind it.

    To be asked anew with what has arrived by then: a link that is slower or dead moves the meeting
    point up, and at last all layers are computed.

    Args:
        prefix: Tokens before the gap whose KV is on the device.
        gap: Tokens whose KV is missing.
        suffix: Tokens behind the gap.
        layers: Of the model.
        computed: Layers that are computed already, from layer 0 on.
        landed: Layers that have arrived, from the last one on.
        compute: Seconds of computing, all layers.
        fetch: Seconds until `n` tokens more have arrived, all layers of them.
        page: Tokens of a page. It makes no difference here; another planner may look at it.
        lead: Seconds before computing can go on.
        wait: Seconds that waiting is rather chosen for than to compute a layer.

    Returns:
        0: none, the rest arrives soon enough.
    """
    left = layers - computed - landed
    if left <= 0 or fetch(-(-gap * left // layers)) <= max(lead, wait):
        return 0
    split = best_layers(
        prefix,
        gap,
        layers=layers,
        compute=compute,
        fetch=fetch,
        suffix=suffix,
        computed=computed,
        landed=landed,
        lead=lead,
    )
    return split.layers


def layers_are_sooner(
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
    """Whether a gap is restored by layers: the prompt is done sooner than by any other way.

    So it is below the length at which the token-wise way overtakes (CacheFlow's L_delta), as far as
    both sources together are faster than either.

    Args:
        prefix: Tokens before the gap whose KV is on the device.
        gap: Tokens whose KV is missing, none of which has been asked for yet.
        suffix: Tokens behind the gap.
        layers: Of the model.
        compute: Seconds of computing, all layers.
        fetch: Seconds until `n` tokens have arrived.
        page: Tokens of a page.
        lead: Seconds before computing can start.
        gain: Seconds that it must save.
    """
    split = best_layers(
        prefix, gap, layers=layers, compute=compute, fetch=fetch, suffix=suffix, lead=lead
    )
    if not 0 < split.layers < layers:
        return False
    end = prefix + gap
    alone = lead + compute(prefix, gap + suffix)
    loaded = fetch(gap) + compute(end, suffix)
    tokens = best_split(prefix, gap, compute=compute, fetch=fetch, page=page, lead=lead)
    return split.seconds + gain < min(alone, loaded, tokens.seconds + compute(end, suffix))
