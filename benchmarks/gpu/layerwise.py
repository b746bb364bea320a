"""What KV that is placed layer by layer costs on a GPU: kernels, copies, and how they overlap.

    python benchmarks/gpu/layerwise.py                            # on the GPU
    TRITON_INTERPRET=1 python benchmarks/gpu/layerwise.py --toy   # on a CPU: shows that it runs

First each kernel is held against torch. Then: attention through a layer's table beside attention
over KV in one piece; cells that a kernel copies from pinned memory beside one large copy; decode
steps whose layers wait for their KV from the host, beside what the planner's model says; what a
page of the device's costs to map, for tables that alias memory. Writes --output (JSON). Needs this
repository, torch and Triton; no SGLang.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import layer_kernels as kernels
from aliasing import mapped
from command import arguments
from timing import graphed, seconds

from tokenflow_sgl.engine.layerwise.batched_copies import copy_batch
from tokenflow_sgl.engine.layerwise.link_clock import LinkClock, StepSpeeds
from tokenflow_sgl.engine.layerwise.staging_queue import PageFetch, StagingQueue
from tokenflow_sgl.placement import Machine, decode_step, half_phases

Row = dict[str, float | str]

WAYS = "kernel", "few", "engine"
FEW = 8
"""Blocks of threads that copy pages beside what is computed."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured: Llama-3.1-8B's attention, or a toy.

    Attributes:
        heads, kv_heads, width: Of a layer.
        rows, contexts: Of decode steps, in all combinations.
        pages: Tokens of a page.
        copied: Tokens of a copy.
        blocks: Of threads that gather a copy, where not as many as it has pages do.
        layers: Of the steps that overlap.
        hidden: Width of the matrix product that stands for a layer.
        streams: Pages of each stream of these steps, with pages of 64 tokens or the largest.
    """

    heads: int
    kv_heads: int
    width: int
    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    pages: tuple[int, ...]
    copied: int
    blocks: tuple[int, ...]
    layers: int
    hidden: int
    streams: tuple[int, ...]
    dtype: torch.dtype


WHOLE = Sizes(
    *(32, 8, 128, (1, 16, 64), (1024, 8192), (1, 16, 64), 65536, (2, 4, 8, 32), 32, 4096),
    *((128, 64, 32, 256), torch.bfloat16),
)
TOY = Sizes(4, 2, 16, (2,), (24,), (1, 8), 64, (2,), 4, 32, (3, 2), torch.float32)


class Layer:
    """One layer's KV of some rows, scattered over an arena.

    Attributes:
        table: Cell of each page.
        places: Of each row's tokens.
    """

    def __init__(self, sizes: Sizes, rows: int, context: int, page: int, device: str) -> None:
        pages = rows * -(-context // page)
        shape = (pages + 1) * page, sizes.kv_heads, sizes.width
        more: dict[str, Any] = {"dtype": sizes.dtype, "device": device}
        self.key, self.value = torch.randn(shape, **more), torch.randn(shape, **more)
        self.query = torch.randn(rows, sizes.heads, sizes.width, **more)
        self.table = torch.randperm(pages, device=device) + 1
        of = torch.arange(pages, device=device).reshape(rows, -1, 1) * page
        places = (of + torch.arange(page, device=device)).reshape(rows, -1)
        self.places = places[:, :context].contiguous()
        self.lengths = torch.full((rows,), context, dtype=torch.int64, device=device)
        self.page = page

    def attend(self) -> torch.Tensor:
        """Through the table."""
        given = self.table, self.places, self.lengths, self.query, self.key, self.value
        return kernels.attend(*given, self.page)

    def in_one_piece(self) -> Callable[[], torch.Tensor]:
        """Attention over the same KV, gathered before."""
        at = self.table[self.places // self.page] * self.page + self.places % self.page
        key, value = (each[at].movedim(1, 2).contiguous() for each in (self.key, self.value))
        query = self.query[:, :, None]
        attention = torch.nn.functional.scaled_dot_product_attention
        return lambda: attention(query, key, value, enable_gqa=True)[:, :, 0]


def check(sizes: Sizes, device: str) -> list[Row]:
    """The largest difference of each kernel from torch."""
    found: list[Row] = []
    for page in sizes.pages:
        layer = Layer(sizes, sizes.rows[0], sizes.contexts[0], page, device)
        far = (layer.attend().float() - layer.in_one_piece()().float()).abs().max()
        new = torch.randn_like(layer.key[: layer.places.shape[1]])
        kernels.store(layer.table, layer.places[0], new, layer.key, page)
        places = layer.places[0]
        at = layer.table[places // page] * page + places % page
        stored = (layer.key[at] - new).abs().max()
        row: Row = {"page": page, "attend": float(far), "store": float(stored)}
        cells = layer.key.unflatten(0, (-1, page))
        some = torch.arange(len(cells) // 2, device=device)
        for name, blocks in (("copy", ()), ("copy_by_few", sizes.blocks[:1])):
            copy = torch.zeros_like(cells)
            getattr(kernels, name)(cells, some, copy, some + 1, *blocks)
            row[name] = float((copy[some + 1] - cells[some]).abs().max())
        found.append(row)
    return found


def attention(sizes: Sizes, device: str) -> list[Row]:
    """Seconds of attention through the table, and of torch's over KV in one piece."""
    found: list[Row] = []
    for page in sizes.pages:
        for rows in sizes.rows:
            for context in sizes.contexts:
                layer = Layer(sizes, rows, context, page, device)
                row: Row = {"page": page, "rows": rows, "context": context}
                row["through_table_s"] = seconds(graphed(layer.attend, device), device)
                row["in_one_piece_s"] = seconds(graphed(layer.in_one_piece(), device), device)
                found.append(row)
    return found


def copies(sizes: Sizes, device: str) -> list[Row]:
    """Bytes per second of cells that a kernel gathers, and of one copy of as much."""
    found: list[Row] = []
    for page in sizes.pages:
        cells = sizes.copied // page
        shape = cells + 1, page, sizes.kv_heads, sizes.width
        host = torch.zeros(shape, dtype=sizes.dtype, pin_memory=device == "cuda")
        arena = torch.zeros(shape, dtype=sizes.dtype, device=device)
        to = torch.randperm(cells, device=device) + 1
        source = torch.randperm(cells, device=device) + 1
        pairs = {"load": (host, source, arena, to), "store": (arena, to, host, source)}
        for way, pair in pairs.items():
            gathered = seconds(lambda pair=pair: kernels.copy(*pair), device)
            a, b = pair[2][1:], pair[0][1:]
            whole = seconds(lambda a=a, b=b: a.copy_(b, non_blocking=True), device)
            total = arena[1:].nbytes
            row: Row = {"way": way, "page": page, "gathered_bytes_per_s": total / gathered}
            for blocks in sizes.blocks:
                few = seconds(
                    lambda pair=pair, blocks=blocks: kernels.copy_by_few(*pair, blocks), device
                )
                row[f"gathered_by_{blocks}_bytes_per_s"] = total / few
            row["whole_bytes_per_s"] = total / whole
            found.append(row)
    return found


class Steps:
    """Decode steps: a matrix product stands for a layer, and KV comes from the host beside it.

    Args:
        sizes: Of what is measured.
        device: `cuda` or `cpu`.
        way: Who copies: a `kernel` with a block of threads per page, one with `few` blocks, or the
            copy `engine`, to which one call names the pages.
    """

    def __init__(self, sizes: Sizes, device: str, way: str) -> None:
        self._sizes, self._device, self._way = sizes, device, way
        self._layouts = half_phases(sizes.layers)
        pages, page = sum(sizes.streams), sizes.pages[-1]
        shape = pages + 1, page, 2 * sizes.kv_heads, sizes.width
        self._arena = torch.zeros(shape, dtype=sizes.dtype, device=device)
        self._host = torch.zeros(shape, dtype=sizes.dtype, pin_memory=device == "cuda")
        self._cells = torch.arange(1, pages + 1, device=device)
        size = self._page_bytes = self._host[0].nbytes
        self._addresses = [
            [of.data_ptr() + at for at in range(size, size * (pages + 1), size)]
            for of in (self._arena, self._host)
        ]
        square = (sizes.hidden, sizes.hidden)
        self._a, self._b = (torch.randn(square, dtype=sizes.dtype, device=device) for _ in range(2))
        # Of high priority, so that its blocks need not wait for all blocks of a product.
        self._link = torch.cuda.Stream(priority=-1) if device == "cuda" else None
        layer = seconds(self._compute, device)
        page_s = seconds(lambda: self._beside(0, pages), device) / pages
        self._speeds = StepSpeeds(layer, 1.0 / page_s)

    def measured(self, choice: int) -> Row:
        """All streams with one layout: the step, and what the planner's model says."""
        sizes = self._sizes
        layout = self._layouts.choices[choice]
        ends = np.cumsum((0, *sizes.streams))
        pages = [np.arange(a, b) for a, b in itertools.pairwise(ends)]
        groups = [(tuple(layer - 1 for layer in layout), own) for own in pages if layout]
        machine = Machine(np.full(sizes.layers, self._speeds.layer), self._speeds.pages, 1e12)
        said = decode_step(
            np.array(sizes.streams, dtype=float),
            np.full(len(sizes.streams), choice),
            self._layouts,
            machine,
        )
        return {
            "way": self._way,
            "layers_on_host": len(layout),
            "step_s": seconds(lambda: self._step(groups), self._device),
            "model_s": said.seconds,
            "resident_s": said.seconds - said.stalled,
        }

    def all_measured(self) -> list[Row]:
        """Each layout."""
        return [self.measured(choice) for choice in range(len(self._layouts))]

    def _step(self, groups: list[tuple[tuple[int, ...], Any]]) -> None:
        queue, clock = StagingQueue(groups), LinkClock(self._speeds)
        landing: dict[int, Any] = {}

        def fetch(fetches: list[PageFetch]) -> None:
            for each in fetches:
                clock.asked(each.layer, each.pages.size)
                landing[each.layer] = self._beside(int(each.pages[0]), each.pages.size)

        for layer in range(self._sizes.layers):
            fetch(queue.due(layer))
            clock.starts(layer)
            fetch(queue.ahead(clock.most()))
            if (landed := landing.pop(layer, None)) is not None:
                torch.cuda.current_stream().wait_event(landed)
            self._compute()
            clock.ends()
            queue.done(layer)

    def _beside(self, first: int, pages: int) -> Any:
        """Copies pages beside what is computed, and says when they have landed."""
        if self._link is None:
            self._copy(first, pages)
            return None
        self._link.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._link):
            self._copy(first, pages)
            return self._link.record_event()

    def _compute(self) -> None:
        torch.mm(self._a, self._b)

    def _copy(self, first: int, pages: int) -> None:
        cells = self._cells[first : first + pages]
        if self._way == "kernel":
            kernels.copy(self._host, cells, self._arena, cells)
        elif self._way == "few":
            kernels.copy_by_few(self._host, cells, self._arena, cells, FEW)
        elif self._link is not None:
            targets, sources = (each[first : first + pages] for each in self._addresses)
            stream = torch.cuda.current_stream().cuda_stream
            copy_batch(targets, sources, [self._page_bytes] * pages, stream)
        else:
            inside = slice(first + 1, first + pages + 1)
            self._arena[inside].copy_(self._host[inside])


def main() -> int:
    args = arguments(__doc__, "gpu-layerwise.json", "FILE")
    sizes, device = TOY if args.toy else WHOLE, args.device
    found = {
        "device": "cpu" if args.toy else torch.cuda.get_device_name(),
        "differences": check(sizes, device),
        "attention": attention(sizes, device),
        "copies": copies(sizes, device),
        "steps": [row for way in WAYS for row in Steps(sizes, device, way).all_measured()],
        "aliasing": mapped(device),
    }
    text = json.dumps(found, indent=1)
    args.output.write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
