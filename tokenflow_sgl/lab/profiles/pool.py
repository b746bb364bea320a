"""How many KV tokens SGLang would hold on a device and on its host, by its own default rules.

After SGLang 0.5.23, ``srt/arg_groups/memory_hook.py`` for tensor-parallel devices without
speculative decoding: of each device's memory it keeps back, in MiB,

    512 + 1.5 * chunk + 128 * devices + 2 * rows + 8 * captured prefill sizes

and at least 10 GiB on devices of more than 60 GiB. `chunk` (chunked prefill size) and `rows` (the
largest decode batch captured as a CUDA graph) go by the device's memory, `rows` also by whether
there are fewer than four devices. What is left holds the weights and the KV pool. Memory that the
CUDA context and the driver take is not known here and not subtracted, about 0.5 GiB, so that a real
pool is a little smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenflow_sgl.host_pool import HOST_RATIO
from tokenflow_sgl.lab.profiles.document import ProfileError

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class _Defaults:
    below_gib: float
    chunk: int
    rows: int
    group_rows: int


_DEFAULTS = (
    _Defaults(20, 2048, 8, 8),
    _Defaults(35, 4096, 48, 160),
    _Defaults(60, 4096, 32, 160),
    _Defaults(160, 8192, 256, 512),
    _Defaults(float("inf"), 16384, 512, 512),
)
_GROUP = 4
"""Devices from which on `group_rows` counts."""


def static_fraction(device_memory: int, ranks: int = 1) -> float:
    """Share of device memory for weights and KV: SGLang's default ``--mem-fraction-static``.

    Args:
        device_memory: Bytes of one device.
        ranks: Tensor-parallel devices.

    Raises:
        ProfileError: Nothing is left of a memory that small.
    """
    mib = device_memory / _MIB
    defaults = _defaults(device_memory)
    kept = 512 + 1.5 * defaults.chunk + 128 * ranks + 2 * graph_rows(device_memory, ranks)
    kept += 8 * _captured_prefills(defaults.chunk)
    if mib > 60 * 1024:
        kept = max(kept, 10 * 1024)
    fraction = round((mib - kept) / mib, 3)
    if fraction <= 0.0:
        raise ProfileError(
            f"device memory is {mib:.0f} MiB; SGLang keeps {kept:.0f} MiB of it for itself."
        )
    return fraction


def _defaults(device_memory: int) -> _Defaults:
    # SGLang's own class for 60 to 90 GiB has the values of that for 90 to 160.
    gib = device_memory / _MIB / 1024
    return next(item for item in _DEFAULTS if gib < item.below_gib)


def chunked_prefill_size(device_memory: int) -> int:
    """Tokens of a prefill step at most: SGLang's default ``--chunked-prefill-size``."""
    return _defaults(device_memory).chunk


def graph_rows(device_memory: int, ranks: int = 1) -> int:
    """Rows of the largest decode step that SGLang captures as a CUDA graph by default."""
    defaults = _defaults(device_memory)
    return defaults.rows if ranks < _GROUP else defaults.group_rows


def kv_pool_tokens(
    device_memory: int,
    weight_bytes: int,
    kv_bytes_per_token: int,
    *,
    fraction: float | None = None,
    ranks: int = 1,
) -> int:
    """KV tokens beside the weights on one device.

    Args:
        device_memory: Bytes.
        weight_bytes: Bytes of the weights on it.
        kv_bytes_per_token: Bytes of KV per token on it.
        fraction: Share of the memory for both (``--mem-fraction-static``); None: SGLang's default.
        ranks: Tensor-parallel devices that share the model.

    Raises:
        ProfileError: The fraction is none, or the weights leave no room.
    """
    whose = "SGLang's default share"
    if fraction is None:
        fraction = static_fraction(device_memory, ranks)
    elif not 0.0 < fraction < 1.0:
        raise ProfileError(
            f"mem-fraction-static is {fraction!r}; allowed is a number above 0 and below 1."
        )
    else:
        whose = f"the share {fraction:g}"
    budget = fraction * device_memory
    tokens = int((budget - weight_bytes) / kv_bytes_per_token)
    if tokens < 1:
        raise ProfileError(
            f"the weights take {weight_bytes / 1e9:.1f} GB, and {whose} of one "
            f"device with {device_memory / 1e9:.1f} GB is {budget / 1e9:.1f} GB."
        )
    return tokens


def host_pool_tokens(pool_tokens: int) -> int:
    """KV tokens of SGLang's host pool for a device pool of `pool_tokens`."""
    return int(HOST_RATIO * pool_tokens)


def _captured_prefills(chunk: int) -> int:
    """Number of prefill sizes up to `chunk` that SGLang captures as CUDA graphs."""
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256))
    sizes = [size for first, end, step in steps for size in range(first, end, step)]
    sizes += range(4608, chunk + 1, 512)
    return sum(size <= chunk for size in sizes)
