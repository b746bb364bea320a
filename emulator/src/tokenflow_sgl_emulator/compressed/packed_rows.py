"""Rows of V4's buffers: twins of the kernels that pack and unpack them.

A buffer [pages, bytes] has in each page the data of all its rows, then their scales. A row of KV is
448 values in 8 bits, in seven tiles that have a power of two as their scale, and 64 rotated values
in bfloat16. A row of an indexer is 128 values in 8 bits with one scale in float32.
"""

from typing import Any

import torch

WIDTH = 512
"""Values of a row of KV."""
ROTATED = 64
"""Its last values, which depend on the position."""
INDEX_WIDTH = 128
"""Values of a row of an indexer."""
_PLAIN = WIDTH - ROTATED
_TILE = 64
_DATA = _PLAIN + 2 * ROTATED
_SCALES = 8  # a byte for each tile, and one that fills up
_LARGEST = 448.0  # in float8_e4m3fn
_LEAST = 1e-4


def store(
    input: torch.Tensor,
    cache: torch.Tensor,
    indices: torch.Tensor,
    *,
    page_size: int,
    type: str,
    layout: str = "v4",
    freqs_cis: Any = None,
) -> None:
    """Pack rows into the places ``indices`` of a buffer, of an indexer or of KV.

    Raises:
        ValueError: The kernel is asked to rotate the rows, too, or for another layout.
    """
    if freqs_cis is not None or layout != "v4":
        raise ValueError(f"layout is {layout!r}; allowed on this platform is 'v4', without freqs")
    buffer, values = cache.view(torch.uint8), input.float()
    if type == "indexer":
        scale = values.abs().amax(-1, keepdim=True).clamp_min(_LEAST) / _LARGEST
        data = (values / scale).to(torch.float8_e4m3fn).view(torch.uint8)
        scales = scale.contiguous().view(torch.uint8)
        _put(buffer, indices, page_size, data, scales)
        return
    tiles = values[:, :_PLAIN].unflatten(-1, (-1, _TILE))
    exponent = torch.ceil(
        torch.log2(tiles.abs().amax(-1, keepdim=True).clamp_min(_LEAST) / _LARGEST)
    )
    plain = (tiles / torch.exp2(exponent)).to(torch.float8_e4m3fn).view(torch.uint8).flatten(1)
    rotated = values[:, _PLAIN:].to(torch.bfloat16).contiguous().view(torch.uint8)
    scales = torch.zeros(len(values), _SCALES, dtype=torch.uint8)
    scales[:, :-1] = (exponent.squeeze(-1) + 127).to(torch.uint8)
    _put(buffer, indices, page_size, torch.cat([plain, rotated], 1), scales)


def rows(cache: torch.Tensor, places: torch.Tensor, page_size: int) -> torch.Tensor:
    """Rows of KV [places, 512], float32."""
    data, scales = _get(cache, places, page_size, _DATA, _SCALES)
    tiles = data[:, :_PLAIN].contiguous().view(torch.float8_e4m3fn).float()
    factor = torch.exp2(scales[:, :-1].float() - 127)[..., None]
    plain = (tiles.unflatten(-1, (-1, _TILE)) * factor).flatten(1)
    rotated = data[:, _PLAIN:].contiguous().view(torch.bfloat16).float()
    return torch.cat([plain, rotated], 1)


def index_rows(cache: torch.Tensor, places: torch.Tensor, page_size: int) -> torch.Tensor:
    """Rows of an indexer [places, 128], float32."""
    data, scales = _get(cache, places, page_size, INDEX_WIDTH, 4)
    values = data.contiguous().view(torch.float8_e4m3fn).float()
    return values * scales.contiguous().view(torch.float32)


def _put(
    buffer: torch.Tensor,
    places: torch.Tensor,
    page_size: int,
    data: torch.Tensor,
    scales: torch.Tensor,
) -> None:
    width = data.shape[1]
    buffer[_columns(places, page_size, width, 0)] = data
    buffer[_columns(places, page_size, scales.shape[1], page_size * width)] = scales


def _get(
    cache: torch.Tensor, places: torch.Tensor, page_size: int, width: int, scales: int
) -> tuple[torch.Tensor, torch.Tensor]:
    buffer = cache.view(torch.uint8)
    return (
        buffer[_columns(places, page_size, width, 0)],
        buffer[_columns(places, page_size, scales, page_size * width)],
    )


def _columns(
    places: torch.Tensor, page_size: int, width: int, base: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pages, and columns in them, of what is `width` bytes per row from `base` on."""
    page, row = places.long() // page_size, places.long() % page_size
    return page[:, None], base + row[:, None] * width + torch.arange(width)
