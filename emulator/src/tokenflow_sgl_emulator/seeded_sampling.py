"""SGLang's sampling hash in plain torch, so that seeded sampling runs without Triton.

MurmurHash3 (32 bit) over four blocks: the low and high half of the request's seed, the
token's position, and the vocabulary column. int64 holds every product of two 32-bit
numbers that matters modulo 2^32.
"""

import torch

_MASK = 0xFFFFFFFF


def _multiply(value: torch.Tensor, factor: int) -> torch.Tensor:
    """Multiply modulo 2^32, for values below 2^32: in halves, so that int64 suffices."""
    low = value & 0xFFFF
    high = value >> 16
    return (low * factor + (((high * factor) & 0xFFFF) << 16)) & _MASK


def _rotate(value: torch.Tensor, bits: int) -> torch.Tensor:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


def _mix(state: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    block = _multiply(_rotate(_multiply(block & _MASK, 0xCC9E2D51), 15), 0x1B873593)
    return (_multiply(_rotate(state ^ block, 13), 5) + 0xE6546B64) & _MASK


def murmur_hash32(
    seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor
) -> torch.Tensor:
    """Hash of (seed, position, column), shape (rows, columns), as uint32.

    Args:
        seed: One 64-bit seed per row.
        positions: Position of the token to be sampled, per row.
        col_indices: Vocabulary columns.
    """
    seeds = seed.to(torch.int64)[:, None]
    state = torch.zeros((), dtype=torch.int64)
    state = _mix(state, seeds)
    state = _mix(state, seeds >> 32)
    state = _mix(state, positions.to(torch.int64)[:, None])
    state = _mix(state, col_indices.to(torch.int64)[None, :])
    state = state ^ 16  # bytes hashed
    state = state ^ (state >> 16)
    state = _multiply(state, 0x85EBCA6B)
    state = state ^ (state >> 13)
    state = _multiply(state, 0xC2B2AE35)
    return (state ^ (state >> 16)).to(torch.uint32)
