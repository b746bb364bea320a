"""How full the KV memory of a run's server was, and what it took on the host, as far as known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenflow_sgl.lab.runs.recording import Recording

_GB_OF_SGLANG = float(1 << 30)


@dataclass(frozen=True, slots=True)
class HeldKv:
    """KV memory of a run; None: not known.

    Attributes:
        tokens: Size of the device's.
        share: Most of it that was held at once, 1 being all; of several servers the fullest.
        measured: The share is what the engine held. Else it is the prompts and answers of the
            streams under way, as a client saw them: what several share counts for each of them,
            and more than 1 was paused or queued in part.
        host_bytes: Size of the host's pool, all servers and ranks together; 0: there is none.
        host_peak_bytes: Most of it that was in use.
    """

    tokens: int | None = None
    share: float | None = None
    measured: bool = False
    host_bytes: float | None = None
    host_peak_bytes: float | None = None


def held_kv(recording: Recording) -> HeldKv:
    """What a run says of its KV memory; nothing is guessed."""
    target = recording.info.target
    told = target.get("kv_memory")
    if isinstance(told, Mapping):
        tokens = int(told["tokens"])
        return HeldKv(
            tokens,
            told["peak_tokens"] / tokens,
            True,
            float(told["host_bytes"]),
            float(told["host_peak_bytes"]),
        )
    server = target.get("server")
    if not isinstance(server, Mapping):
        return HeldKv()
    host = _host_bytes(server)
    if not isinstance(server.get("max_total_num_tokens"), int):
        return HeldKv(host_bytes=host)
    whole = _count(server, "max_total_num_tokens") * _count(server, "dp_size")
    return HeldKv(whole, _under_way(recording) / whole, host_bytes=host)


def _under_way(recording: Recording) -> int:
    """Most tokens at once of prompts and text of streams that had begun and had not ended."""
    served = recording.counts > 0
    over = np.where(np.isnan(recording.ended), recording.info.duration_s, recording.ended)
    counts, prompts = recording.counts[served], recording.prompt_tokens[served]
    times = np.concatenate([recording.times, recording.first[served], over[served]])
    ones = np.ones(recording.times.size, dtype=np.int64)
    changes = np.concatenate([ones, prompts, -(prompts + counts)])
    order = np.argsort(times, kind="stable")
    return int(np.cumsum(changes[order]).max(initial=0))


def _host_bytes(server: Mapping[str, Any]) -> float | None:
    """Size of HiCache's pools by the server's arguments, or as tokenflow has sized them."""
    if "enable_hierarchical_cache" not in server:
        return None
    if not server["enable_hierarchical_cache"]:
        return 0.0
    ranks = _count(server, "tp_size") * _count(server, "pp_size") * _count(server, "dp_size")
    fixed, ratio = server.get("hicache_size"), server.get("tokenflow_host_ratio")
    if ratio is None:
        ratio = server.get("hicache_ratio")
    if isinstance(fixed, int | float) and fixed > 0:
        return 1e9 * fixed * ranks
    device = server.get("kv_cache_gb")
    if isinstance(device, int | float) and isinstance(ratio, int | float):
        return float(device * _GB_OF_SGLANG * ratio * ranks)
    return None


def _count(server: Mapping[str, Any], name: str) -> int:
    count = server.get(name)
    return count if isinstance(count, int) and count > 0 else 1


def kv_sentence(held: HeldKv, *, gained: bool) -> str:
    """Say how full the KV memory was, and from which load on it would matter.

    Args:
        held: Of the baseline.
        gained: Another run is better in something that counts: the load does matter already.
    """
    if held.share is None or held.tokens is None or not math.isfinite(held.share):
        return "How full the KV memory was is not recorded."
    share = f"{held.share:.0%} of {held.tokens:,} tokens"
    said = (
        f"KV peaked at {share}"
        if held.measured
        else f"Streams under way held up to {share} of KV memory, as a client sees it"
    )
    if gained or held.share >= FULL or not held.share:
        return f"{said}."
    return f"{said}: nothing to gain below about {1 / held.share:.1f} times this load."


FULL = 0.9
"""Share of the KV memory from which on it counts as full: SGLang keeps some for running streams."""
