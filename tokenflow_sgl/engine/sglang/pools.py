"""What is used of SGLang's memory: allocators, rows, and pools on device and host."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from tokenflow_sgl.engine.sglang.protocol import of

if TYPE_CHECKING:
    import torch

_ALLOCATOR = "sglang.srt.mem_cache.allocator"
_POOL = "sglang.srt.mem_cache.memory_pool"
_HOST = "sglang.srt.mem_cache.pool_host"


@of(f"{_ALLOCATOR}.base:BaseTokenToKVPoolAllocator")
class Allocator(Protocol):
    """Which tokens' places on the device are free."""

    size: int
    page_size: int
    dtype: Any
    device: Any
    need_sort: bool
    """Whether pages are handed out in order, which ours do not."""
    free_group: list[torch.Tensor] | None
    """What is freed together at the end of a step."""

    def available_size(self) -> int:
        """Tokens that are free on the device."""

    def get_kvcache(self) -> Any:
        """The pool that the places are in."""

    def _copy_for_free_group(self, free_index: torch.Tensor) -> torch.Tensor:
        """What is freed at the end of a step must not change until then."""

    def get_all_free_pages(self) -> torch.Tensor:
        """Numbers of the pages that are free."""

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Places for the copies of a tail."""

    def free(self, free_index: torch.Tensor) -> None:
        """Gives the places of a tail's copies back."""


@of("sglang.srt.speculative.base_spec_worker:HiCacheDraftPlan")
class DraftPlan(Protocol):
    """How KV of drafts is kept on the host."""

    mode: str
    device_pools: tuple[Any, ...]


@of("sglang.srt.mem_cache.cache_init_params:CacheInitParams")
class CacheParams(Protocol):
    """What a cache of prefixes is built with."""

    token_to_kv_pool_allocator: Allocator
    mtp_draft_device_pools: tuple[Any, ...]


@of(f"{_ALLOCATOR}.paged:PagedTokenToKVPoolAllocator")
class PagedAllocator(Allocator, Protocol):
    """One of pages of several tokens."""

    def free_page_ids(self, page_ids: torch.Tensor) -> None:
        """Gives pages back, by their numbers."""


@of(f"{_ALLOCATOR}.swa:SWATokenToKVPoolAllocator")
class WindowAllocator(Allocator, Protocol):
    """Two pools: KV of all tokens, and of sliding windows."""

    swa_req_ring: bool
    size_full: int
    size_swa: int

    def full_available_size(self) -> int:
        """What is free of KV, for itself."""

    def swa_available_size(self) -> int:
        """What is free of windows, for itself."""


@of(f"{_ALLOCATOR}.mamba:MambaSlotAllocator")
class StatePlaces(Protocol):
    """Places for recurrent states, which are given out and taken back."""

    size: int

    def schedulable_available_size(self) -> int:
        """How many can be had."""


@of(f"{_POOL}:ReqToTokenPool")
class Rows(Protocol):
    """Which token of which request has which place."""

    req_to_token: torch.Tensor


@of(f"{_POOL}:HybridReqToTokenPool")
class StateRows(Rows, Protocol):
    """Rows of requests of a model with recurrent states."""

    mamba_allocator: StatePlaces
    mamba_initial_tracking_slots: int
    """States that a stream takes from the beginning."""


@of(f"{_POOL}:MHATokenToKVPool")
class KvPool(Protocol):
    """Keys and values of all layers on the device."""

    size: int
    page_size: int
    layer_num: int
    head_num: int
    head_dim: int
    v_head_dim: int
    dtype: Any
    store_dtype: Any
    device: Any
    k_buffer: list[torch.Tensor]
    v_buffer: list[torch.Tensor]
    use_hnd: bool
    is_quantized_kv_cache: bool
    _kv_buffer_descs: list[Any]

    def _init_data_ptrs_and_strides(self) -> None:
        """SGLang's record of the buffers."""


@of(f"{_HOST}.base:HostKVCache")
class HostPool(Protocol):
    """Slots for KV on the host."""

    size: int
    page_size: int
    layout: str
    kv_buffer: torch.Tensor
    lock: Any
    free_slots: torch.Tensor
    release_slots: Any
    slot_used: Any
    logical_page_size: int
    logical_size: int


@of(f"{_HOST}.mha:MHATokenToKVPoolHost")
class MhaHostPool(HostPool, Protocol):
    """One of keys and values, as SGLang's files have them."""

    layer_num: int
    v_head_dim: int


@of(f"{_HOST}.group:PoolEntry")
class HostPoolEntry(Protocol):
    """One pool of a group."""

    host_pool: HostPool


@of(f"{_HOST}.group:HostPoolGroup")
class HostPools(Protocol):
    """Pools on the host that are asked for together."""

    anchor_entry: HostPoolEntry
    """That of KV, by whose slots the others go."""

    def layout_lease(self) -> AbstractContextManager[Any]:
        """Keeps the slots where they are while they are written."""


@of("sglang.srt.mem_cache.hicache_storage:HiCacheFile")
class FileStorage(Protocol):
    """HiCache's storage in files."""

    file_path: str

    def _get_suffixed_key(self, key: str) -> str:
        """Reads layers of a page from its file."""


_COMPRESSED = "sglang.srt.mem_cache.deepseek_v4"


@of(f"{_COMPRESSED}_memory_pool:DeepSeekV4IndexerPool")
class IndexerPool(Protocol):
    """DeepSeek V4's index of KV."""

    def contiguous_page_row_buffers(self) -> list[torch.Tensor]:
        """What a copy must have."""


@of(f"{_COMPRESSED}_compress_state:KVAndScore")
class KvAndScore(Protocol):
    """KV that is not compressed yet."""

    kv_score: torch.Tensor


@of(f"{_COMPRESSED}_compress_state:CompressStatePool")
class CompressStates(Protocol):
    """KV that is not compressed yet, of all streams."""

    ring_size: int
    request_scoped: bool
    kv_score_buffer: KvAndScore


@of(f"{_COMPRESSED}_memory_pool:DeepSeekV4TokenToKVPool")
class CompressedPool(Protocol):
    """The pools of DeepSeek V4."""

    size: int
    page_size: int
    sliding_window: int
    kv_pools: dict[Any, Any]
    index_pools: dict[Any, IndexerPool]
    swa_kv_pool: Any
    swa_page_size: int
    compress_state_pools: list[CompressStates | None]
    indexer_compress_state_pools: list[CompressStates | None]

    def get_contiguous_buf_infos(self) -> tuple[list[int], list[int], list[int]]:
        """What a prefill server sends of a stream, which a copy must have."""

    def get_state_buf_infos(self) -> tuple[list[int], list[int], list[int]]:
        """What a prefill server sends of a stream, which a copy must have."""

    def get_request_state_buf_infos(self) -> tuple[list[int], list[int], list[int]]:
        """What a prefill server sends of a stream, which a copy must have."""

    def get_online_c128_mtp_max_draft_tokens(self) -> int:
        """States that take drafts in later are refused."""

    def translate_loc_from_full_to_swa(self, kv_indices: torch.Tensor) -> torch.Tensor:
        """Pages of the window in which tokens of all layers lie."""
