"""Triton kernels for KV that is placed layer by layer: nothing of SGLang, tensors in and out.

A token's place in SGLang is page * page size + place in the page. In a layer it lies in the cell
that the layer's row of the table names. All tensors of KV are of shape (tokens, heads, width).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ON_THEIR_WAY = 128 * 1024
"""Bytes that a block of `copy_by_few` loads before it stores them."""
PROGRAMS = 1024
"""Into about so many is attention split, for devices with 100 to 200 multiprocessors."""


@triton.jit
def _located(table, places, page: tl.constexpr):
    """Where a layer has these tokens in the arena."""
    return tl.load(table + places // page) * page + places % page


@triton.jit
def _store(table, places, new, arena, row: tl.constexpr, page: tl.constexpr, width: tl.constexpr):
    token = tl.program_id(0)
    at = _located(table, tl.load(places + token), page)
    each = tl.arange(0, width)
    inside = each < row
    tl.store(arena + at * row + each, tl.load(new + token * row + each, mask=inside), mask=inside)


@triton.jit
def _copy(source_cells, target_cells, source, target, size: tl.constexpr, block: tl.constexpr):
    cell, part = tl.program_id(0), tl.program_id(1)
    each = part * block + tl.arange(0, block)
    inside = each < size
    begin = tl.load(source_cells + cell) * size
    end = tl.load(target_cells + cell) * size
    tl.store(target + end + each, tl.load(source + begin + each, mask=inside), mask=inside)


@triton.jit
def _copy_by_few(
    source_cells,
    target_cells,
    source,
    target,
    cells,
    size: tl.constexpr,
    block: tl.constexpr,
    turn: tl.constexpr,
    blocks: tl.constexpr,
):
    across = tl.arange(0, block)
    for first in range(tl.program_id(0) * turn, cells, blocks * turn):
        number = first + tl.arange(0, turn)
        begin = tl.load(source_cells + number, mask=number < cells, other=0) * size
        end = tl.load(target_cells + number, mask=number < cells, other=0) * size
        for part in range(0, size, block):
            each = part + across
            inside = (number < cells)[:, None] & (each < size)[None, :]
            moved = tl.load(source + begin[:, None] + each[None, :], mask=inside)
            tl.store(target + end[:, None] + each[None, :], moved, mask=inside)


@triton.jit
def _attend(
    table,
    places,
    lengths,
    query,
    key,
    value,
    found,
    most,
    weight,
    longest,
    share,
    scale,
    heads: tl.constexpr,
    kv_heads: tl.constexpr,
    width: tl.constexpr,
    page: tl.constexpr,
    block: tl.constexpr,
    together: tl.constexpr,
):
    row, kv_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    parts = tl.num_programs(2)
    group: tl.constexpr = heads // kv_heads
    across, each, member = tl.arange(0, width), tl.arange(0, block), tl.arange(0, together)
    head = kv_head * group + member
    asking = (member < group)[:, None]
    at = (row * heads + head)[:, None] * width + across[None, :]
    asked = tl.load(query + at, mask=asking, other=0.0)
    peak = tl.full((together,), -1e30, tl.float32)
    total = tl.zeros((together,), tl.float32)
    mixed = tl.zeros((together, width), tl.float32)
    end = tl.minimum((part + 1) * share, tl.load(lengths + row))
    for begin in range(part * share, end, block):
        inside = begin + each < end
        place = tl.load(places + row * longest + begin + each, mask=inside, other=0)
        token = (_located(table, place, page) * kv_heads + kv_head) * width
        there = token[:, None] + across[None, :]
        keys = tl.load(key + there, mask=inside[:, None], other=0.0)
        scores = tl.dot(asked, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(inside[None, :], scores, -1e30)
        now = tl.maximum(peak, tl.max(scores, axis=1))
        shares, kept = tl.exp(scores - now[:, None]), tl.exp(peak - now)
        values = tl.load(value + there, mask=inside[:, None], other=0.0)
        more = tl.dot(shares.to(values.dtype), values, input_precision="ieee")
        mixed = mixed * kept[:, None] + more
        total = total * kept + tl.sum(shares, axis=1)
        peak = now
    to = (row * heads + head) * parts + part
    tl.store(found + to[:, None] * width + across[None, :], mixed, mask=asking)
    tl.store(most + to, peak, mask=member < group)
    tl.store(weight + to, total, mask=member < group)


@triton.jit
def _merge(
    found, most, weight, output, parts: tl.constexpr, padded: tl.constexpr, width: tl.constexpr
):
    one = tl.program_id(0)
    across, part = tl.arange(0, width), tl.arange(0, padded)
    inside = part < parts
    peaks = tl.load(most + one * parts + part, mask=inside, other=-1e30)
    kept = tl.exp(peaks - tl.max(peaks, axis=0))
    total = tl.sum(tl.load(weight + one * parts + part, mask=inside, other=0.0) * kept, axis=0)
    at = (one * parts + part)[:, None] * width + across[None, :]
    mixed = tl.load(found + at, mask=inside[:, None], other=0.0)
    tl.store(output + one * width + across, tl.sum(mixed * kept[:, None], axis=0) / total)


def store(table: Tensor, places: Tensor, new: Tensor, arena: Tensor, page: int) -> None:
    """Put new tokens where their layer lies.

    Args:
        table: Cell of each page in this layer, of shape (pages,), int64.
        places: Of the tokens, of shape (tokens,), int64.
        new: Their keys or values.
        arena: Of all cells.
        page: Tokens of a page.
    """
    row = new[0].numel()
    _store[(len(places),)](table, places, new, arena, row, page, triton.next_power_of_2(row))


def copy(source: Tensor, source_cells: Tensor, target: Tensor, target_cells: Tensor) -> None:
    """Copy whole cells from one memory to another; either may be pinned memory of the host.

    Args:
        source: Cells, of shape (cells, ...).
        source_cells: Which of them, of shape (copies,), int64, on the device.
        target: Cells of the same size.
        target_cells: Where they go, as `source_cells`.
    """
    size = source[0].numel()
    block = min(triton.next_power_of_2(size), 1024)
    grid = (len(source_cells), triton.cdiv(size, block))
    _copy[grid](source_cells, target_cells, source, target, size, block)


def copy_by_few(
    source: Tensor, source_cells: Tensor, target: Tensor, target_cells: Tensor, blocks: int
) -> None:
    """As `copy`, by so many blocks of threads that the rest of the device goes on computing.

    SGLang's HiCache gathers with two blocks of 1,024 threads, which have 128 KiB on their way each
    if keys and values of a token are 2 KiB (`kvcacheio/hicache.cuh`); as much as these have.
    """
    size = source[0].numel()
    most = ON_THEIR_WAY // source.element_size()
    block = min(triton.next_power_of_2(size), 2048, most)
    given = source_cells, target_cells, source, target, len(source_cells)
    _copy_by_few[(blocks,)](*given, size, block, most // block, blocks, num_warps=32)


def attend(
    table: Tensor,
    places: Tensor,
    lengths: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    page: int,
    block: int = 64,
) -> Tensor:
    """One new token of each row attends to its row, through the layer's table.

    Rows are split into parts that are attended to side by side and then merged, so that few long
    rows keep the device busy, too (flash decoding).

    Args:
        table: As of `store`.
        places: Of all tokens of each row, of shape (rows, longest), int64.
        lengths: Tokens of each row, of shape (rows,), int64, at least 1.
        query: Of shape (rows, heads, width).
        key: Arena, of shape (tokens, KV heads, width); the width is a power of 2, at least 16.
        value: As `key`.
        page: Tokens of a page.
        block: Tokens that are looked at together; a power of 2, at least 16.

    Returns:
        Of the shape of the query.
    """
    rows, heads, width = query.shape
    kv_heads, longest = key.shape[1], places.shape[1]
    blocks = triton.cdiv(longest, block)
    parts = max(min(PROGRAMS // (rows * kv_heads), blocks), 1)
    share = triton.cdiv(blocks, parts) * block
    parts = triton.cdiv(longest, share)
    output = torch.empty_like(query)
    more = {"dtype": torch.float32, "device": query.device}
    found = torch.empty(rows * heads, parts, width, **more)
    most, weight = torch.empty(2, rows * heads, parts, **more)
    together = max(triton.next_power_of_2(heads // kv_heads), 16)  # fewer make no product
    _attend[(rows, kv_heads, parts)](
        *(table, places, lengths, query, key, value, found, most, weight),
        *(longest, share, width**-0.5, heads, kv_heads, width, page, block, together),
    )
    padded = triton.next_power_of_2(parts)
    _merge[(rows * heads,)](found, most, weight, output, parts, padded, width)
    return output
