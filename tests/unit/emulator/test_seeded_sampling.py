"""The sampling hash against MurmurHash3 written out with Python integers."""

from __future__ import annotations

import struct

import torch

from tokenflow_sgl_emulator.seeded_sampling import murmur_hash32


def murmur3_32(data: bytes) -> int:
    mask = 0xFFFFFFFF
    h = 0
    for (k,) in struct.iter_unpack("<I", data):
        k = k * 0xCC9E2D51 & mask
        k = (k << 15 | k >> 17) & mask
        h ^= k * 0x1B873593 & mask
        h = (h << 13 | h >> 19) & mask
        h = h * 5 + 0xE6546B64 & mask
    h ^= len(data)
    h ^= h >> 16
    h = h * 0x85EBCA6B & mask
    h ^= h >> 13
    h = h * 0xC2B2AE35 & mask
    return h ^ h >> 16


def test_hash_is_murmur3() -> None:
    seeds = [0, 1, 42, 2**31, 2**40 + 17, 2**63 - 1]
    positions = [0, 1, 77, 5000, 131071, 2**31 - 1]
    columns = [0, 1, 511, 128255]
    got = murmur_hash32(
        torch.tensor(seeds, dtype=torch.int64).to(torch.uint64),
        torch.tensor(positions),
        torch.tensor(columns),
    )
    expected = [
        [murmur3_32(struct.pack("<QII", s, p, c)) for c in columns]
        for s, p in zip(seeds, positions, strict=True)
    ]
    assert got.to(torch.int64).tolist() == expected
