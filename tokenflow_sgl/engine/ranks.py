"""Which ranks of a server decide together, and which for themselves.

Ranks that compute parts of the same requests' attention must come to the same decisions. Plain
tensor parallelism makes all ranks one such group. With DP attention each group of
`tp_size / dp_size` ranks has its own requests, KV and prefix tree, decides for itself, and shares
only the steps with the others. A data-parallel replica (`--dp-size`) shares nothing.
"""

from __future__ import annotations

from pathlib import Path

from tokenflow_sgl.engine.sglang.worker import Ranks


def decides_alone(ranks: Ranks) -> bool:
    """Whether no other rank has to come to the same decisions; ranks: SGLang's, of this process."""
    return bool(ranks.attn_tp_size * ranks.attn_cp_size == 1)


def place_in_group(ranks: Ranks) -> int:
    """Place of this rank among those that decide together; 0 leads them."""
    return int(ranks.attn_cp_rank * ranks.attn_tp_size + ranks.attn_tp_rank)


def rank_path(path: str, dp_rank: int | None, pp_rank: int = 0) -> Path:
    """The file of one group: data-parallel ranks and pipeline stages above 0 are named in it."""
    suffix = "".join(f".{name}{rank}" for name, rank in (("dp", dp_rank), ("pp", pp_rank)) if rank)
    return Path(path + suffix)
