"""What is used of SGLang's prefix tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tokenflow_sgl.engine.sglang.controller import Controller, StorageFetch
from tokenflow_sgl.engine.sglang.pools import Allocator
from tokenflow_sgl.engine.sglang.protocol import of
from tokenflow_sgl.engine.sglang.request import Req

if TYPE_CHECKING:
    import torch

_BASE = "sglang.srt.mem_cache.base_prefix_cache"
_CACHE = "sglang.srt.mem_cache.unified_radix_cache"
_CORE = "sglang.srt.mem_cache.unified_cache"


@of(f"{_BASE}:MatchResult")
class TreeMatch(Protocol):
    """What the tree has of a prompt or a paused stream."""

    device_prefix_len: int
    host_hit_length: int
    last_device_node: Any
    best_match_node: Any


@of(f"{_BASE}:EvictParams")
class Eviction(Protocol):
    """How many tokens SGLang wants evicted from the tree."""

    mamba_num: int
    """Places for recurrent states."""


@of(f"{_BASE}:InitLoadBackParams")
class LoadBack(Protocol):
    """What SGLang loads from the host."""

    req: Req | None


@of(f"{_CACHE}:_OngoingPrefetch")
class OngoingFetch(Protocol):
    """A fetch from storage that is under way."""

    operation: StorageFetch
    host_indices: torch.Tensor | Any
    anchor_node_id: Any
    anchor_lock_params: Any
    prefetch_key: Any

    def _replace(self, **changed: Any) -> OngoingFetch:
        """Moves the node that its tail goes on."""


@of(f"{_CORE}.unified_tree_core_interface:TreePathNodeInfo")
class PathNode(Protocol):
    """A node on the way from the root."""

    node_id: int
    parent_id: int
    path_start: int
    path_end: int
    """Its tokens, counted from the root."""


@of(f"{_CORE}.components.base:ComponentData")
class NodeData(Protocol):
    """What a node has of one pool."""

    host_value: torch.Tensor | None


@of(f"{_CACHE}:_OngoingWriteThrough")
class OngoingCopy(Protocol):
    """A copy to the host that is under way."""

    lock_params: Any
    """None: its node is about to be evicted, which has to wait for it."""


@of(f"{_BASE}:IncLockRefResult")
class HostLock(Protocol):
    """A lock on a node's copy on the host."""

    node_id: Any

    def to_dec_params(self) -> Any:
        """What the lock is given up with, later."""


@of(f"{_CORE}.unified_tree_core:UnifiedTreeNode")
class TreeNode(Protocol):
    """A node in Python, for the memory ledger."""

    children: Mapping[Any, TreeNode]
    component_data: Sequence[NodeData]


@of(f"{_CORE}.unified_tree_core:UnifiedTreeCore")
class NamedNodes(Protocol):
    """Nodes in Python, for the memory ledger; those in Rust have no names."""

    root_node: TreeNode


@of(f"{_CORE}.unified_tree_core_interface:UnifiedTreeCoreInterface")
class TreeCore(NamedNodes, Protocol):
    """The nodes, in Rust or in Python."""

    def build_backup_spec(self, node_id: Any) -> tuple[torch.Tensor, Mapping[Any, Any]]:
        """Whether SGLang has left out a state that it should have copied to the host."""

    def collect_path_info(self, end_node_ids: Sequence[Any]) -> Sequence[Sequence[PathNode]]:
        """Which node one goes on, and which nodes a stream has."""


@of(f"{_CACHE}:UnifiedRadixCache")
class Tree(Protocol):
    """The prefix tree, with HiCache or without."""

    page_size: int
    tree_core: TreeCore | Any
    tree_components: Mapping[Any, Any]
    cache_controller: Controller | Any
    """HiCache's; None: it is off."""
    token_to_kv_pool_allocator: Allocator
    req_to_token_pool: Any
    is_write_back: bool
    write_through_threshold: int
    """Whether HiCache writes what is published."""
    load_back_threshold: int
    """Lowered, so that short tails are loaded, too."""
    enable_storage: bool
    prefetch_threshold: int
    ongoing_write_through: Mapping[Any, OngoingCopy]
    ongoing_load_back: Mapping[Any, Any]
    ongoing_prefetch: dict[Any, OngoingFetch]
    prefetch_loaded_tokens_by_reqid: dict[Any, int]
    _storage_prefetch_hit_remaining_by_reqid: dict[Any, int]

    def supports_mamba(self) -> bool:
        """Whether there are recurrent states."""

    def supports_swa(self) -> bool:
        """Whether the tree keeps layers with sliding windows."""

    def supports_prefix_sharing(self) -> bool:
        """Whether what several prompts begin with is there once."""

    def evictable_size(self) -> int:
        """What no running stream locks."""

    def full_evictable_size(self) -> int:
        """What can be evicted of KV, for itself."""

    def swa_evictable_size(self) -> int:
        """What can be evicted of windows, for itself."""

    def protected_size(self) -> int:
        """Tokens of the tree that running streams lock."""

    def match_prefix(self, params: Any) -> TreeMatch:
        """Finds what of a waiting prompt is on the device and on the host."""

    def prefix_device_indices(self, req: Req) -> torch.Tensor:
        """The pages that a prompt finds, which a running stream may have."""

    def lock(self, node_id: Any) -> Any:
        """Keeps the chunks of a stream on the device until the last one is there."""

    def unlock(self, lock: Any) -> None:
        """Lets the locked chunks of a stream be evicted."""

    def checkpoint(self, req: Req, *, up_to: int) -> None:
        """Publishes what a running stream has computed, which HiCache then writes."""

    def flush_pending_backups(self) -> None:
        """Starts these copies before the next step."""

    def backup_node_for_write_back(self, node_id: Any) -> bool:
        """Copies a state to the host that SGLang has left out."""

    def writing_check(self, write_back: bool = False) -> None:
        """Waits for all writes before the caches may be flushed."""

    def loading_check(self, finish_count: int | None = None) -> None:
        """Acknowledges all loads before the caches may be flushed."""

    def check_hicache_events(self) -> None:
        """Acknowledges copies while the engine is paused."""

    def init_load_back(self, params: Any) -> tuple[int, Any]:
        """Brings a paused stream's KV back."""

    def ready_to_load_host_cache(self) -> int:
        """Starts that copy, and says which counter a sharing prefill waits for."""

    def load_back(self, node_id: Any, *, req: Req) -> bool:
        """The tree has a copied tail on the device."""

    def evict_for_alloc(self, params: Any) -> Any:
        """Makes room for the copies of a tail."""

    def evict_host(self, num_tokens: int) -> int:
        """Makes room for a fetch that was refused."""

    def is_root(self, node_id: Any) -> bool:
        """Whether the tree takes a tail."""

    def is_backuped(self, node_id: Any) -> bool:
        """Whether the tree takes a tail, and which of a stream's nodes have a copy."""

    def inc_host_lock_ref(self, node_id: Any) -> HostLock:
        """Locks the node that the head ends at, or copies of a stream while others are made."""

    def dec_host_lock_ref(self, node_id: Any, params: Any) -> Any:
        """Unlocks the node that the head ended at before."""

    def release_aborted_request(self, request: Any) -> None:
        """Drops a fetch or a query."""

    def _execute_and_commit_kv_backup(self, action: Any, write_back: bool = False) -> int:
        """Copies a node to the host: a head, so that the tree takes its tail, or a stream's."""

    def _handle_prefetch_result(self, operation: StorageFetch) -> None:
        """Enters a tail when the head meets it."""

    def _resolve_storage_prefetch_tokens(
        self, request: Any, num_tokens: int, reason: str | None = None
    ) -> None:
        """Tells SGLang's metrics what is not fetched."""

    def _finish_storage_prefetch(
        self, request: Any, fulfilled_tokens: int, reason: str | None
    ) -> None:
        """Tells SGLang's metrics that a storage hit is not used."""

    def _all_reduce(self, data: torch.Tensor, tp_reduce_op: Any) -> None:
        """All ranks decide by the leader's figures."""

    def discard_kv_cache_backup(self, backup: Any) -> None:
        """Gives a decode server's copy up."""

    def all_values_flatten(self) -> torch.Tensor:
        """Which places of the device the tree has."""

    def session_records(self) -> Mapping[str, Any]:
        """Records of the places that sessions have in memory."""
