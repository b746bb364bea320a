"""Triton kernels for KV that is placed layer by layer: nothing of SGLang, tensors in and out.

A token's place in SGLang is page * page size + place in the page. In a layer it lies in the cell
that the layer's row of the table names. All tensors of KV are of shape (tokens, heads, width).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


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
def _attend(
    table,
    places,
    lengths,
    query,
    key,
    value,
    output,
    longest,
    scale,
    heads: tl.constexpr,
    kv_heads: tl.constexpr,
    width: tl.constexpr,
    page: tl.constexpr,
    block: tl.constexpr,
):
    row, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + row)
    across, each = tl.arange(0, width), tl.arange(0, block)
    asked = tl.load(query + (row * heads + head) * width + across).to(tl.float32)
    most = tl.full((1,), -float("inf"), tl.float32)
    weight = tl.zeros((1,), tl.float32)
    found = tl.zeros((width,), tl.float32)
    for begin in range(0, length, block):
        inside = begin + each < length
        place = tl.load(places + row * longest + begin + each, mask=inside, other=0)
        at = (_located(table, place, page) * kv_heads + head // (heads // kv_heads)) * width
        shape = at[:, None] + across[None, :]
        keys = tl.load(key + shape, mask=inside[:, None], other=0.0).to(tl.float32)
        scores = tl.where(inside, tl.sum(keys * asked[None, :], axis=1) * scale, -float("inf"))
        now = tl.maximum(most, tl.max(scores, axis=0))
        share, kept = tl.exp(scores - now), tl.exp(most - now)
        values = tl.load(value + shape, mask=inside[:, None], other=0.0).to(tl.float32)
        found = found * kept + tl.sum(values * share[:, None], axis=0)
        weight = weight * kept + tl.sum(share, axis=0)
        most = now
    tl.store(output + (row * heads + head) * width + across, found / weight)


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

    Args:
        table: As of `store`.
        places: Of all tokens of each row, of shape (rows, longest), int64.
        lengths: Tokens of each row, of shape (rows,), int64, at least 1.
        query: Of shape (rows, heads, width).
        key: Arena, of shape (tokens, KV heads, width); the width is a power of 2.
        value: As `key`.
        page: Tokens of a page.
        block: Tokens that are looked at together; a power of 2.

    Returns:
        Of the shape of the query.
    """
    rows, heads, width = query.shape
    output = torch.empty_like(query)
    _attend[(rows, heads)](
        *(table, places, lengths, query, key, value, output),
        *(places.shape[1], width**-0.5, heads, key.shape[1], width, page, block),
    )
    return output
