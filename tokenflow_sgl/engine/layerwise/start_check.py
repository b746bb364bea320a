"""What is tried on a GPU before a server starts: copies of KV, and attention through the table."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tokenflow_sgl.contract import IntArray
from tokenflow_sgl.engine.layerwise.cell_table import CellTable
from tokenflow_sgl.engine.layerwise.kv_on_both_sides import KvOnBothSides
from tokenflow_sgl.engine.layerwise.page_places import PagePlaces
from tokenflow_sgl.engine.sglang.attention import TritonAttention

LENGTHS = (37, 5)
"""Tokens of the two streams that attention is tried with."""
FAR = 2e-2
"""By which it may differ from torch's: values are of size 1, and have 8 bits in bfloat16."""


class StartCheckError(RuntimeError):
    """What was tried did not give what it should."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"--tokenflow-layerwise: the check at start failed: {what}. It is experimental on this "
            "device; start without it, and report this."
        )


def check_copies(memory: KvOnBothSides, page: int) -> None:
    """Store some cells on the host, and load them into others.

    Args:
        memory: Of one cell each beside cell 0, at least. Its cells are zeros before and after.
        page: Tokens of a cell.

    Raises:
        StartCheckError: Something else came back.
    """
    arenas = memory.key, memory.value
    cells = len(memory.key) // page - 1
    number = min(cells // 2, 6) or 1
    out = np.arange(number, 0, -1, dtype=np.int64)
    back = np.roll(out, 1) + (cells - number)
    host = np.roll(out, 2)
    # New tokens of a layer follow to the host one by one.
    token = back[:1] * page + page - 1, host[:1] * page + page - 1
    expected = []
    for arena in arenas:
        shape = (number * page, *arena.shape[1:])
        arena[_tokens(out, page)] = _numbers(shape, arena.dtype, arena.device)
        expected.append(arena[_tokens(out, page)])
    stored = memory.to_host(out, host)
    memory.wait(stored)
    for arena in arenas:
        arena.zero_()
    memory.wait(memory.to_device(back, host, stored))
    found = [arena[_tokens(back, page)] for arena in arenas]
    new = [torch.full_like(arena[:1], 3.0) for arena in arenas]
    for arena, each in zip(arenas, new, strict=True):
        arena[torch.from_numpy(token[0])] = each
    memory.wait(memory.to_device(back[:1], host[:1], memory.tokens_to_host(*token)))
    last = [arena[torch.from_numpy(token[0])] for arena in arenas]
    for arena in arenas:
        arena.zero_()
    for name, a, b in (("cells", found, expected), ("new tokens", last, new)):
        if not all(torch.equal(one, other) for one, other in zip(a, b, strict=True)):
            raise StartCheckError(f"copies of {name} to the host and back changed them")


def check_attention(backend: TritonAttention, pool: Any) -> None:
    """Let SGLang's decode kernel read two streams whose pages lie anywhere, against torch.

    Args:
        backend: SGLang's Triton backend.
        pool: Ours; keys and values are of its shapes, and not in it.

    Raises:
        StartCheckError: The results differ.
    """
    page, heads, kv_heads = pool.page_size, backend.num_head, pool.head_num
    device, dtype = pool.device, pool.dtype
    pages = [-(-length // page) for length in LENGTHS]
    table = PagePlaces(1, sum(pages) + 1, sum(pages), 0)
    logical = np.random.default_rng(0).permutation(sum(pages)) + 1
    table.add(logical, np.zeros((1, sum(pages)), dtype=np.bool_))
    cells = CellTable(table, page, device)
    cells.update()
    # Of each stream its pages, which lie anywhere, in cells in another order.
    listed = np.split(np.arange(1, sum(pages) + 1), [pages[0]])
    places = [
        cells.where(0, torch.from_numpy(_first(own, length, page)).to(device))
        for own, length in zip(listed, LENGTHS, strict=True)
    ]
    tokens, streams = (sum(pages) + 1) * page, len(LENGTHS)
    key = _numbers((tokens, kv_heads, pool.head_dim), dtype, device)
    value = _numbers((tokens, kv_heads, pool.v_head_dim), dtype, device)
    query = _numbers((streams, heads, pool.head_dim), dtype, device)
    found = torch.empty((streams, heads, pool.v_head_dim), dtype=dtype, device=device)
    splits = backend.max_kv_splits
    room: Any = {"dtype": torch.float32, "device": device}
    backend.decode_attention_fwd(
        query,
        key,
        value,
        found,
        torch.tensor([0, LENGTHS[0], sum(LENGTHS)], dtype=torch.int32, device=device),
        torch.cat(places),
        torch.empty((streams, heads, splits, pool.v_head_dim), **room),
        torch.empty((streams, heads, splits), **room),
        torch.full((streams,), min(splits, 2), dtype=torch.int32, device=device),
        splits,
        pool.head_dim**-0.5,
        1.0,
        1.0,
        page_size=page,
    )
    for stream, at in enumerate(places):
        expected = torch.nn.functional.scaled_dot_product_attention(
            query[stream, None, :, None].float(),
            key[at].movedim(0, 1)[None].float(),
            value[at].movedim(0, 1)[None].float(),
            enable_gqa=True,
        )[0, :, 0]
        far = float((found[stream].float() - expected).abs().max())
        if not far < FAR:
            raise StartCheckError(f"attention through the table of cells differs by {far:.3g}")


def _numbers(
    shape: tuple[int, ...], dtype: torch.dtype, device: str | torch.device
) -> torch.Tensor:
    """Random numbers of a generator of their own, which leaves the server's seed to it."""
    generator = torch.Generator(device=device).manual_seed(0)
    return torch.randn(shape, dtype=dtype, device=device, generator=generator)


def _tokens(cells: IntArray, page: int) -> torch.Tensor:
    """All places of these cells, in order."""
    return torch.from_numpy(_first(cells, cells.size * page, page))


def _first(cells: IntArray, tokens: int, page: int) -> IntArray:
    """The first places of these cells."""
    found: IntArray = (cells[:, None] * page + np.arange(page)).reshape(-1)[:tokens]
    return found
