"""SGLang's KV pool and its allocators, over one arena for all layers.

SGLang goes on counting logical pages, of which there are more than fit the device. Where a page's
KV of a layer lies is looked up in `PagePlaces.table`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from sglang.srt.environ import envs
from sglang.srt.mem_cache.allocator.base import BaseTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.platforms import current_platform

from tokenflow_sgl.engine.layerwise.cell_table import CellTable
from tokenflow_sgl.engine.layerwise.copiers import Copier, RunCopy, TorchCopier, do
from tokenflow_sgl.engine.layerwise.cuda_copier import CudaCopier
from tokenflow_sgl.engine.layerwise.even_spread import EvenSpread
from tokenflow_sgl.engine.layerwise.kv_on_both_sides import CellShape, KvOnBothSides
from tokenflow_sgl.engine.layerwise.layer_executor import LayerExecutor
from tokenflow_sgl.engine.layerwise.layer_planners import make_layer_planner
from tokenflow_sgl.engine.layerwise.page_places import PagePlaces
from tokenflow_sgl.engine.layerwise.solved_layers import SolvedLayers
from tokenflow_sgl.engine.layerwise.start_check import check_copies
from tokenflow_sgl.engine.layerwise_settings import LayerwiseSettings
from tokenflow_sgl.engine.refusal import UnsupportedError
from tokenflow_sgl.engine.sglang.overriding import checked, overrides
from tokenflow_sgl.engine.sglang.pools import Allocator


@checked
class LayerwisePool(MHATokenToKVPool):  # type: ignore[misc]
    """Keys and values of all layers.

    Attributes:
        settings: Of the launch.
        executor: Places the pages, and moves them.
        cells: Of each page, as attention finds them.
    """

    settings: ClassVar[LayerwiseSettings]
    executor: LayerExecutor
    cells: CellTable
    _attention_reads = False

    @overrides("makes the arena in place of a buffer per layer")
    def _create_buffers(self) -> None:
        # The tensors have the arena's tokens, not `size` of them.
        layers, page = self.layer_num, self.page_size
        pages = self.size // page
        cells = int(pages * layers / self.settings.ratio)
        if cells < pages:
            raise UnsupportedError(
                f"--tokenflow-layerwise-ratio is {self.settings.ratio:g} and the model has "
                f"{layers} layers: a stream with all KV on the host still needs one layer of it "
                f"on the device; allowed is at most {layers}."
            )
        if self.store_dtype != self.dtype or self.is_quantized_kv_cache or self.use_hnd:
            raise UnsupportedError(
                "--tokenflow-layerwise serves KV in the model's own type and SGLang's plain order "
                "only; leave out --kv-cache-dtype and SGLANG_USE_HND_KVCACHE, or this option."
            )
        strict = envs.SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY.get()
        on_gpu = torch.device(self.device).type == "cuda"
        copier: Copier = CudaCopier() if on_gpu else TorchCopier(_run_of_platform())
        key, value = (self.head_num, self.head_dim), (self.head_num, self.v_head_dim)
        cell = CellShape(page, key, value, self.store_dtype)
        memory = KvOnBothSides(
            cells,
            layers * pages,
            cell,
            device=self.device,
            copier=copier,
            poison=strict,
        )
        if on_gpu:
            check_copies(memory, page)
        places = PagePlaces(layers, pages + 1, cells, layers * pages)
        planner = make_layer_planner(self.settings.planner)
        if isinstance(planner, SolvedLayers):
            planner.compile()
        self.executor = LayerExecutor(places, page, planner, EvenSpread(), memory, audits=strict)
        self._memory = memory
        self.cells = CellTable(places, page, self.device)
        self.k_buffer, self.v_buffer = [memory.key] * layers, [memory.value] * layers
        self._kv_buffer_descs: list[Any] = []  # for transfers between servers, which are refused
        self._init_data_ptrs_and_strides()

    @overrides("what of it is on the device")
    def get_kv_size_bytes(self) -> tuple[int, int]:
        """Bytes of the device's keys and values."""
        return self._memory.key.nbytes, self._memory.value.nbytes

    @overrides("only our attention may read")
    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        """Keys of all layers: the arena, which they share.

        Raises:
            RuntimeError: Something else than our attention asks, which would read other tokens.
        """
        self._check_reader()
        found: torch.Tensor = super().get_key_buffer(layer_id)
        return found

    @overrides("only our attention may read")
    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        """The arena's values; errors as of the keys."""
        self._check_reader()
        found: torch.Tensor = super().get_value_buffer(layer_id)
        return found

    @contextmanager
    def read_by_attention(self) -> Iterator[None]:
        """For our attention: all else that reads expects SGLang's pool, and not an arena."""
        self._attention_reads = True
        try:
            yield
        finally:
            self._attention_reads = False

    def _check_reader(self) -> None:
        if not self._attention_reads:
            raise RuntimeError(
                "--tokenflow-layerwise: the model or an option reads KV beside SGLang's attention, "
                "and would read other tokens; start without one of the two."
            )

    def where(self, layer: int, places: torch.Tensor) -> torch.Tensor:
        """Where a layer has these tokens in the arena; of the same shape."""
        return self.cells.where(layer, places)

    @overrides("writes new tokens where their layer lies")
    def _store_kv_layer(
        self, layer_idx: int, loc: torch.Tensor, cache_k: torch.Tensor, cache_v: torch.Tensor
    ) -> None:
        tokens = self.where(layer_idx, loc)
        self._memory.key[tokens], self._memory.value[tokens] = cache_k, cache_v


def _run_of_platform() -> RunCopy:
    run: RunCopy = getattr(current_platform, "kv_copy", do)
    return run


class TellingAllocator(BaseTokenToKVPoolAllocator):  # type: ignore[misc]
    """Tells the pool which pages are free; the second bases of its subclasses make the rest."""

    @overrides("all pages are free")
    def clear(self) -> None:
        """Count all pages as free."""
        super().clear()
        self.get_kvcache().executor.clear()


@checked
class LayerwiseTokenAllocator(TellingAllocator, TokenToKVPoolAllocator):  # type: ignore[misc]
    """Allocator of pages of one token, of a pool whose layers lie apart."""

    @overrides("tells the pool which places are free")
    def free(self, free_index: torch.Tensor) -> None:
        """Take places back, at the end of SGLang's group of frees if there is one."""
        if self.free_group is None:
            self.get_kvcache().executor.freed(free_index.cpu().numpy())
        super().free(free_index)


@checked
class LayerwisePagedAllocator(TellingAllocator, PagedTokenToKVPoolAllocator):  # type: ignore[misc]
    """Allocator of pages of several tokens, of a pool whose layers lie apart."""

    @overrides("tells the pool which pages are free")
    def _release_page_ids(self, *page_ids: torch.Tensor) -> None:
        for pages in page_ids:
            self.get_kvcache().executor.freed(pages.cpu().numpy())
        super()._release_page_ids(*page_ids)


def telling(allocator: Allocator) -> Any:
    """An allocator that tells the pool, for one of SGLang's that was just made and serves our pool.

    Raises:
        UnsupportedError: It is of a kind of which the pages are not simply handed out.
    """
    if not isinstance(allocator.get_kvcache(), LayerwisePool):
        return allocator
    taken = allocator.dtype, allocator.device, allocator.get_kvcache(), allocator.need_sort
    if type(allocator) is TokenToKVPoolAllocator and not allocator.need_sort:
        return LayerwiseTokenAllocator(allocator.size, *taken)
    if type(allocator) is PagedTokenToKVPoolAllocator and not allocator.need_sort:
        return LayerwisePagedAllocator(allocator.size, allocator.page_size, *taken)
    raise UnsupportedError(
        f"--tokenflow-layerwise does not work with SGLang's {type(allocator).__name__}: only its "
        "allocators of plain pages are served; start without the option."
    )
