"""What is used of HiCache: its controller, copies between device and host, fetches from storage."""

from __future__ import annotations

from collections.abc import Mapping
from queue import Queue
from typing import TYPE_CHECKING, Any, Protocol

from tokenflow_sgl.engine.sglang.pools import Allocator
from tokenflow_sgl.engine.sglang.protocol import of

if TYPE_CHECKING:
    import torch

_L2 = "sglang.srt.mem_cache.l2_transfer"
_CONTROLLER = "sglang.srt.managers.cache_controller"
_HYBRID = "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller"


@of(f"{_CONTROLLER}:CacheOperation")
class QueuedCopy(Protocol):
    """A copy that waits to be submitted."""

    device_indices: torch.Tensor
    host_indices: torch.Tensor
    node_ids: list[Any]


@of(f"{_CONTROLLER}:HiCacheAck")
class CopyAck(Protocol):
    """A copy that was submitted."""

    @property
    def start_event(self) -> Any:
        """Event at the begin of a copy."""

    @property
    def finish_event(self) -> Any:
        """Event at the end of a copy."""

    @property
    def num_tokens(self) -> int:
        """Tokens that a copy has copied."""

    @property
    def timing_enabled(self) -> bool:
        """Whether its events tell how long it took."""


@of(f"{_L2}:TransferCompletion")
class CopyEnds(Protocol):
    """What submitting a copy returns."""

    start_event: Any
    finish_event: Any
    timing_enabled: bool

    def _replace(self, **changed: Any) -> CopyEnds:
        """Lets SGLang wait for less."""


@of(f"{_L2}:L2Transfer")
class PoolCopy(Protocol):
    """The part of a copy that is of one pool."""

    host_indices: torch.Tensor
    device_indices: torch.Tensor
    host_pool: Any
    layer_mapper: Any
    """Which layers it copies."""

    def _replace(self, **changed: Any) -> PoolCopy:
        """Lets it copy a single layer."""


@of(f"{_L2}:L2TransferEngine")
class CopyEngine(Protocol):
    """Submits copies of KV between device and host."""

    host_to_device_stream: Any

    def submit_host_to_device(
        self,
        transfers: list[PoolCopy],
        *,
        transfer_layer_id_max: int,
        start_event: Any = None,
        on_layer_done: Any = None,
    ) -> CopyEnds:
        """Copies a batch of a tail to the device."""


@of(f"{_HYBRID}:PrefetchOperation")
class StorageFetch(Protocol):
    """A fetch of a prefix from HiCache's storage."""

    request_id: str
    handle: Any
    hash_value: list[str]
    """Keys of its pages."""
    host_indices: torch.Tensor
    storage_start: int
    storage_hit_count: int
    completed_tokens: int
    pool_transfers: Any
    prefix_keys: list[str] | None
    ack_releases_incomplete_host_indices: bool

    def is_terminated(self) -> bool:
        """Whether SGLang has ended it."""


@of(f"{_CONTROLLER}:PrefetchAck")
class FetchReport(Protocol):
    """What the I/O thread says of a fetch."""

    operation: StorageFetch
    completed_tokens: int | None
    completed_req: bool | None


@of(f"{_HYBRID}:HybridCacheController")
class Controller(Protocol):
    """HiCache's controller: copies of KV between device, host and storage."""

    page_size: int
    io_backend: str
    l2_transfer_engine: CopyEngine
    mem_pool_host: Any
    mem_pool_device_allocator: Allocator | Any
    device: Any
    load_fence_stream: Any
    """Behind which a copy to the device reads no memory that a step still writes."""
    transfer_layer_id_max: int
    write_queue: list[QueuedCopy]
    load_queue: list[QueuedCopy]
    ack_write_queue: list[CopyAck]
    ack_load_queue: list[CopyAck]
    storage_backend: Any
    storage_host_pool: Any
    prefetch_buffer: Queue[Any]
    prefetch_sync_queue: Queue[Any]
    ack_prefetch_queue: Queue[FetchReport]
    prefetch_tokens_occupied: int

    def _page_transfer_kv_batch(
        self,
        operation: StorageFetch,
        batch_hashes: list[str],
        batch_host_indices: torch.Tensor,
        extra_info: Any,
        kv_derived_transfers: list[Any],
    ) -> int:
        """Fetches a batch of pages from the storage."""

    def _move_op_indices(self, op: QueuedCopy) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """Copies a batch to the device."""

    def _l2_load_transfers(
        self, host_indices: torch.Tensor, device_indices: torch.Tensor, pool_transfers: Any = None
    ) -> list[PoolCopy]:
        """Copies a batch to the device."""

    def _num_tokens_by_pool(self, op: QueuedCopy) -> Mapping[str, int]:
        """Acknowledges a copy."""

    def _transfer_num_bytes(self, op: QueuedCopy) -> int:
        """Acknowledges a copy."""

    def append_host_mem_release(self, host_indices: torch.Tensor | None = None) -> None:
        """Gives host memory back that the head has made needless."""

    def terminate_prefetch(self, operation: StorageFetch) -> Any:
        """Ends a fetch from the storage early."""
