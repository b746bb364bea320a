"""Copies between pinned host memory and a device: by size, in pieces, and beside steps.

Pieces are copied by a call each, as HiCache's backend `direct` does with `layer_first`; by one CUDA
graph, which shows what the copy engine takes without the calls; and by one call for all of them
(`cudaMemcpyBatchAsync`), as `direct` does with its default layout.

On a CPU the same copies go from memory to memory, which only shows that the code runs.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

import torch
from timing import graphed, seconds, wait
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tokenflow_sgl.engine.layerwise.batched_copies import copy_batch, has_batched_copies

WAYS = ("load", "store")
ROUNDS = 4
"""Copies of a whole buffer, one after the other, while steps run."""
MOST_CALLS, MOST_NODES = 20_000, 5_000
"""Pieces of a copy that has a call for each, and of one that is a graph or one call."""
BATCHES = 5
"""Calls of which the median counts."""
HIDDEN_CYCLES = 100_000_000
"""What the device spins for, while the CPU prepares a call: some 50 ms."""


class Buffers:
    """A stretch of host memory and one of device memory.

    Args:
        size: Bytes of either.
        device: `cuda` or `cpu`.
    """

    def __init__(self, size: int, device: str) -> None:
        cuda = device == "cuda"
        self.size = size
        self.device = device
        self.host = torch.zeros(size, dtype=torch.uint8, pin_memory=cuda)
        self.there = torch.zeros(size, dtype=torch.uint8, device=device)

    def way(self, kind: str) -> tuple[Tensor, Tensor]:
        """Where a `load` or a `store` copies to and from."""
        return (self.there, self.host) if kind == "load" else (self.host, self.there)

    def copy(self, kind: str, size: int, piece: int | None = None) -> Callable[[], None]:
        """Copies `size` bytes, in pieces of so many bytes each that do not follow each other."""
        to, source = self.way(kind)
        if piece is None:
            return lambda: to[:size].copy_(source[:size], non_blocking=True)
        count = size // piece
        stride = self.size // count
        places = [number * stride for number in range(count)]
        pieces = [(to[at : at + piece], source[at : at + piece]) for at in places]

        def run() -> None:
            for target, origin in pieces:
                target.copy_(origin, non_blocking=True)

        return run


def by_size(buffers: Buffers, kv_bytes: int, tokens: Iterable[int]) -> list[tuple[str, int, float]]:
    """(kind, tokens, seconds) of copies in one piece."""
    return [
        (kind, count, seconds(buffers.copy(kind, count * kv_bytes), buffers.device))
        for kind in WAYS
        for count in tokens
        if count * kv_bytes <= buffers.size
    ]


def by_piece(buffers: Buffers, pieces: Iterable[int]) -> list[dict[str, float | str]]:
    """Bytes per second by the size of the pieces and by how they are copied."""
    found: list[dict[str, float | str]] = []
    for kind in WAYS:
        for piece in pieces:
            row: dict[str, float | str] = {"kind": kind, "piece_bytes": piece}
            size = min(buffers.size // 2, piece * MOST_CALLS) // piece * piece
            taken = seconds(buffers.copy(kind, size, piece), buffers.device)
            row["bytes_per_second"] = size / taken
            size = min(size, piece * MOST_NODES)
            taken = seconds(
                graphed(buffers.copy(kind, size, piece), buffers.device), buffers.device
            )
            row["graph_bytes_per_second"] = size / taken
            if buffers.device == "cuda" and has_batched_copies():
                row["batch_bytes_per_second"] = size / _batched(buffers, kind, size, piece)
            found.append(row)
    return found


def _batched(buffers: Buffers, kind: str, size: int, piece: int) -> float:
    """Seconds that the device takes for pieces that one call names."""
    to, source = buffers.way(kind)
    count = size // piece
    places = [number * (buffers.size // count) for number in range(count)]
    targets = [to.data_ptr() + at for at in places]
    sources = [source.data_ptr() + at for at in places]
    taken = []
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(BATCHES):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(HIDDEN_CYCLES)
            begin.record()
            copy_batch(targets, sources, [piece] * count, torch.cuda.current_stream().cuda_stream)
            end.record()
            end.synchronize()
            taken.append(begin.elapsed_time(end) / 1e3)
    return median(taken)


def beside(
    buffers: Buffers, steps: dict[str, Callable[[], object]]
) -> list[dict[str, float | str]]:
    """What copies and steps of each kind cost each other; nothing on a CPU."""
    if buffers.device != "cuda":
        return []
    found: list[dict[str, float | str]] = []
    for (name, step), kinds in itertools.product(
        steps.items(), (("load",), ("store",), ("load", "store"))
    ):
        copies = Copies([buffers.copy(kind, buffers.size) for kind in kinds])
        copies.run(1)
        copied = copies.run(ROUNDS)
        alone = seconds(step, "cuda")
        count = max(math.ceil(ROUNDS * copied / alone), 1)
        besides, stepped = copies.run_beside(ROUNDS, step, count)
        found.append(
            {
                "step": name,
                "kind": " and ".join(kinds),
                "step_alone_s": alone,
                "step_beside_s": stepped,
                "copy_alone_s": copied,
                "copy_beside_s": besides,
                "bytes": float(buffers.size * len(kinds)),
            }
        )
    return found


class Copies:
    """Copies that run at the same time, each on a stream of its own."""

    def __init__(self, copies: list[Callable[[], None]]) -> None:
        self._copies = [(copy, torch.cuda.Stream()) for copy in copies]

    def run(self, rounds: int) -> float:
        """Seconds of each round, all copies together, while nothing else runs."""
        began = time.perf_counter()
        for copy, stream in self._copies:
            with torch.cuda.stream(stream):
                for _ in range(rounds):
                    copy()
        wait("cuda")
        return (time.perf_counter() - began) / rounds

    def run_beside(
        self, rounds: int, step: Callable[[], object], steps: int
    ) -> tuple[float, float]:
        """Seconds of each round and of each step, while both run."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        copied = [torch.cuda.Event(enable_timing=True) for _ in self._copies]
        wait("cuda")
        begin.record()
        for (copy, stream), event in zip(self._copies, copied, strict=True):
            with torch.cuda.stream(stream):
                for _ in range(rounds):
                    copy()
                event.record()
        for _ in range(steps):
            step()
        end.record()
        wait("cuda")
        longest = max(begin.elapsed_time(event) for event in copied)
        return longest / 1e3 / rounds, begin.elapsed_time(end) / 1e3 / steps
