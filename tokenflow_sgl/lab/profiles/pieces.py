"""How HiCache issues a copy of KV, and what its pieces cost.

KV on the device lies layer by layer, K and V apart: `2 * layers` buffers, so that a token has that
many places. What SGLang 0.5.23 does on a driver for CUDA 12.8 or later (`mem_cache/pool_host`,
`kernels/ops/kvcache/hicache.py`, sgl_kernel's `kvcacheio/transfer.cu`):

- `kernel` loads with a kernel per layer, which gathers all tokens. With `layer_first` and
  `page_head` it stores alike, all layers with one kernel. By default (`page_first`) it packs the
  pages of all layers on the device, and K and V of each page are a piece.
- `direct` with `page_first_direct`, its default, copies K and V of each page in each layer as a
  piece; one call takes all of a layer's load, or of a store.
- `direct` with `layer_first` copies K and V of each run in each layer, with a call for each.

A run is a stretch of tokens whose slots follow each other on both sides; only the last one looks
for runs. Packed pages go 64 to a call, but each by a call of its own while K of a page, all layers,
has less than 128 KiB.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tokenflow_sgl.choices import IoBackend, MemLayout
from tokenflow_sgl.lab.profiles.document import ProfileError
from tokenflow_sgl.lab.profiles.link import Link

STAGED_PAGES = 64
"""Pages that SGLang packs and then copies in one call (`_WRITE_BACK_STAGING_PAGE_CHUNK`)."""
BATCHED_BYTES = 128 * 1024
"""Bytes of a packed page from which on one call copies several (`kLargeCopyThresholdBytes`)."""

LAYOUTS = {
    IoBackend.kernel: (MemLayout.page_first, MemLayout.layer_first, MemLayout.page_head),
    IoBackend.direct: (MemLayout.page_first_direct, MemLayout.layer_first),
}
"""Layouts of host memory that each backend copies to."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """How a copy is issued. Without pieces a kernel gathers it.

    Attributes:
        calls: Of the CPU, to copy its pieces.
        pieces: Stretches of memory that the copy engine copies one by one.
    """

    calls: int = 0
    pieces: int = 0


GATHERED = Pieces()
"""By a kernel, whatever lies where."""


@dataclass(frozen=True, slots=True)
class PieceCosts:
    """What pieces cost beside their bytes. All 0: nothing is known, and a copy is its bytes.

    Attributes:
        call: Seconds of the CPU per copy call (`cudaMemcpyAsync`, `cudaMemcpyBatchAsync`).
        between: Seconds of the copy engine per call, in which no byte moves.
        set_up: Seconds of the copy engine per piece, before its first byte.
        gather: Bytes per second that a gathering kernel reaches at most; 0: those of the link.

    Raises:
        ProfileError: A value is outside its range.
    """

    call: float = 0.0
    between: float = 0.0
    set_up: float = 0.0
    gather: float = 0.0

    def __post_init__(self) -> None:
        for name in ("call", "between", "set_up", "gather"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ProfileError(f"pieces: {name} is {value!r}; allowed is 0 or more.")

    def seconds(self, link: Link, n_bytes: float, issued: Pieces) -> float:
        """Time of a copy of `n_bytes` over a link.

        The CPU issues its calls one by one while the copy engine works through the pieces, so that
        the slower of both decides (FastSwitch, section 2.2: "dispatch" and "execution").
        """
        if not issued.pieces:
            rate = min(link.bandwidth, self.gather or math.inf)
            return link.latency + n_bytes / rate
        copied = issued.pieces * self.set_up + n_bytes / link.bandwidth
        return link.latency + max(issued.calls * self.call, issued.calls * self.between + copied)


NO_PIECE_COSTS = PieceCosts()
"""Nothing is known of pieces, or the copies were measured with theirs."""
ESTIMATED = PieceCosts(call=6e-6, set_up=1.5e-6)
"""For NVIDIA devices that this project could not measure, from publications.

- `call`: 5 to 7 us per `cudaMemcpyAsync` (DualPath, arXiv 2602.21548, section 5.2). SGLang's own
  direct copies of 4 and of 16 KB took 7.6 us each on an MI300X (sgl-project/sglang#31741).
- `set_up`: FastSwitch (section 2.2) calls 320 KB the best size on PCIe 4. With 1.5 us such a piece
  reaches nine tenths of 25 GB/s. The paper's 10 us for 128 KB would make it 4.8 us.
- `gather`: SGLang's kernel with two blocks, its default, reached 24 GB/s on an MI300X
  (sgl-project/sglang#37635) and 97 GB/s on a GB300's faster link (#40278): with PCIe 4 at least
  about the link's rate.
"""
HOPPER = PieceCosts(call=3.6e-6, between=2.7e-6, set_up=0.03e-6, gather=51e9)
"""Measured on an H200 and an H100 with PCIe 5, CUDA 13 (`benchmarks/results/gpu`).

- `call`: pieces of 2 KiB, a call each, took 3.6 us each.
- `between`: pieces of 128 KiB to 8 MiB, a call each, took 2.7 to 3.0 us longer than their bytes.
- `set_up`: in one call for all of them, pieces of 2 and of 16 KiB took 0.03 us longer.
- `gather`: a Triton kernel of two blocks with as many bytes on their way as SGLang's has; tokens
  of 2 KiB. The copy engine moves 55 GB/s.
"""


def load_pieces(
    backend: IoBackend, layout: MemLayout, *, layers: int, pages: int, runs: int
) -> Pieces:
    """How a load is issued that brings some layers of `pages` pages, which are `runs` runs."""
    if backend is IoBackend.kernel:
        return GATHERED
    if layout is MemLayout.layer_first:
        return Pieces(2 * layers * runs, 2 * layers * runs)
    return Pieces(layers, 2 * layers * pages)


def store_pieces(
    backend: IoBackend,
    layout: MemLayout,
    *,
    layers: int,
    pages: int,
    runs: int,
    page_bytes: float,
) -> Pieces:
    """How a copy of all layers to the host is issued.

    Args:
        backend: HiCache's I/O backend.
        layout: Its layout of host memory.
        layers: Of the model.
        pages: Pages that are copied.
        runs: Runs that these are.
        page_bytes: KV bytes of a page, K and V of all layers.
    """
    if backend is IoBackend.direct:
        if layout is MemLayout.layer_first:
            return Pieces(2 * layers * runs, 2 * layers * runs)
        return Pieces(1, 2 * layers * pages)
    if layout is not MemLayout.page_first:
        return GATHERED
    batched = page_bytes / 2 >= BATCHED_BYTES
    return Pieces(-(-pages // STAGED_PAGES) if batched else 2 * pages, 2 * pages)


def host_layout(backend: IoBackend, layout: MemLayout) -> MemLayout:
    """The layout that SGLang takes: with `direct`, its default is laid out for direct copies."""
    if backend is IoBackend.direct and layout is MemLayout.page_first:
        return MemLayout.page_first_direct
    return layout
