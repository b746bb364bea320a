"""Copies of what a stream of DeepSeek V4 has on the device, of which SGLang keeps none.

SGLang's other pools copy a stream to tensors of the process and back. V4's do not: the prefill
server computes again what is retracted. Hooks give its pool these two methods. What they copy is
what a prefill server sends of a stream: compressed rows, and those of the indexer, by pages; the
window, and the states of groups of 4 tokens, by the window's pages; the states of groups of 128 by
the request. A layer for drafts has a pool of its own, with a window in the places of the target's.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from sglang.srt.platforms import current_platform
from sglang.srt.plugins.hook_registry import HookType

from tokenflow_sgl.engine.refusal import UnsupportedError
from tokenflow_sgl.engine.sglang.hooking import hold
from tokenflow_sgl.engine.sglang.pools import CompressedPool

_DRAFTS = "tokenflow_drafts"
_POOL = "sglang.srt.mem_cache.deepseek_v4_memory_pool:DeepSeekV4TokenToKVPool"

Owner = Literal["page", "window page", "request"]


class PoolBuffer(NamedTuple):
    """One buffer of the pool.

    Attributes:
        buffer: [rows, bytes].
        rows: Of each owner, one behind the other.
        owner: What a stream has that has rows in it.
    """

    buffer: torch.Tensor
    rows: int
    owner: Owner

    def places(self, owners: dict[Owner, torch.Tensor]) -> torch.Tensor:
        """Rows of the buffer that belong to what the stream has, of shape (n,)."""
        first = owners[self.owner][:, None] * self.rows
        return (first + torch.arange(self.rows, device=first.device)).flatten()


def register_copies() -> None:
    """Declare the hooks, in the scheduler's process before it has a pool."""
    hold(
        f"{_POOL}.get_cpu_copy",
        keep,
        HookType.REPLACE,
        "DeepSeek V4's pools do not copy a stream themselves",
        ("indices", "req_pool_index"),
    )
    hold(
        f"{_POOL}.load_cpu_copy",
        give_back,
        HookType.REPLACE,
        "gives such a copy back",
        ("kv_cache_cpu", "indices", "req_pool_index"),
    )


def parts_of(pool: CompressedPool) -> list[PoolBuffer]:
    """All that a stream has rows in, of the target or of the layer for drafts."""
    compressed = [each for each in pool.kv_pools.values() if each is not None]
    by_pages = [buffer for each in compressed for buffer in each.kv_buffer]
    for each in pool.index_pools.values():
        by_pages += each.contiguous_page_row_buffers()
    window = pool.swa_kv_pool
    found = [PoolBuffer(_bytes(buffer), 1, "page") for buffer in by_pages]
    pieces = pool.swa_page_size // window.page_size
    found += [PoolBuffer(_bytes(buffer), pieces, "window page") for buffer in window.kv_buffer]
    for states in (*pool.compress_state_pools, *pool.indexer_compress_state_pools):
        if states is not None:
            owner: Owner = "request" if states.request_scoped else "window page"
            found.append(
                PoolBuffer(_bytes(states.kv_score_buffer.kv_score), states.ring_size, owner)
            )
    return found


def copy_with(pool: CompressedPool, drafts: Any) -> None:
    """From now on a stream is copied with its part of a second pool.

    Args:
        pool: SGLang's of V4.
        drafts: That of the layer for drafts; None: no drafts are verified.

    Raises:
        UnsupportedError: One is not as SGLang sends it, as it may be with kernels of another make.
    """
    check_copies(pool)
    if pool.get_online_c128_mtp_max_draft_tokens():
        raise UnsupportedError(
            "--scheduler tokenflow does not serve DeepSeek V4 with speculation on a decode server "
            "with SGLANG_EXPERIMENTAL_ONLINE_C128_MTP: states take drafts in a step later; unset "
            "it, or start without the flag."
        )
    if drafts is not None:
        check_copies(drafts)
    setattr(pool, _DRAFTS, drafts)


def check_copies(pool: CompressedPool) -> None:
    """Compare with what SGLang sends of a stream; raises as `copy_with` does."""
    sent: dict[Owner, tuple[list[int], list[int], list[int]]] = {
        "page": pool.get_contiguous_buf_infos(),
        "window page": pool.get_state_buf_infos(),
        "request": pool.get_request_state_buf_infos(),
    }
    parts = parts_of(pool)
    for owner, (addresses, _, lengths) in sent.items():
        copied = {
            each.buffer.data_ptr(): each.rows * each.buffer.shape[1]
            for each in parts
            if each.owner == owner
        }
        known = dict(zip(addresses, lengths, strict=True))
        if copied.keys() != known.keys() or not all(
            _covers(owner, copied[each], known[each]) for each in known
        ):
            raise UnsupportedError(
                "--scheduler tokenflow serves DeepSeek V4 on a decode server whose pools are as "
                f"with NVIDIA's kernels; per {owner} SGLang sends {len(addresses)} buffers there, "
                f"of which {len(copied)} are known, start it without the flag."
            )


def _covers(owner: Owner, copied: int, sent: int) -> bool:
    """Whether bytes that are copied are those that SGLang sends.

    With drafts a request has places for two groups of 128, of which one is sent.
    """
    return copied == sent or (owner == "request" and copied == 2 * sent)


def keep(
    pool: CompressedPool,
    indices: torch.Tensor,
    mamba_indices: Any = None,
    req_pool_index: Any = None,
) -> list[torch.Tensor]:
    """In place of `get_cpu_copy`: a copy of what a stream has, part by part.

    Args:
        pool: SGLang's of V4.
        indices: Places of its tokens.
        mamba_indices: None here.
        req_pool_index: Its row.
    """
    owners = _owners(pool, indices, req_pool_index)
    current_platform.synchronize()
    kept = [part.buffer[part.places(owners)].to("cpu", non_blocking=True) for part in _copied(pool)]
    current_platform.synchronize()
    return kept


def give_back(
    pool: CompressedPool,
    kv_cache_cpu: list[torch.Tensor],
    indices: torch.Tensor,
    mamba_indices: Any = None,
    req_pool_index: Any = None,
) -> None:
    """In place of `load_cpu_copy`: what was kept, to the places that the stream has now."""
    owners = _owners(pool, indices, req_pool_index)
    current_platform.synchronize()
    for part, rows in zip(_copied(pool), kv_cache_cpu, strict=True):
        _put(part, part.places(owners), rows)
    current_platform.synchronize()


def _copied(pool: CompressedPool) -> list[PoolBuffer]:
    return [*parts_of(pool), *_parts_of_drafts(pool)]


def _parts_of_drafts(pool: CompressedPool) -> list[PoolBuffer]:
    drafts = getattr(pool, _DRAFTS, None)
    return [] if drafts is None else parts_of(drafts)


def _put(part: PoolBuffer, places: torch.Tensor, rows: torch.Tensor) -> None:
    part.buffer[places] = rows.to(part.buffer.device, non_blocking=True)


def _owners(pool: CompressedPool, indices: torch.Tensor, row: int) -> dict[Owner, torch.Tensor]:
    """Numbers of the stream's pages, of its window's pages, and of itself."""
    page, count = pool.page_size, len(indices)
    firsts = indices[::page].long()
    window = max(count - pool.sliding_window, 0) // page
    places = pool.translate_loc_from_full_to_swa(firsts[window:])
    assert bool((places > 0).all()), f"row {row} lacks pages of its window"
    return {
        "page": firsts // page,
        "window page": places // pool.swa_page_size,
        "request": torch.tensor([row], device=indices.device),
    }


def _bytes(buffer: torch.Tensor) -> torch.Tensor:
    """A buffer as rows of bytes, since tensors of all kinds of bytes can be indexed."""
    return buffer.view(torch.uint8)
