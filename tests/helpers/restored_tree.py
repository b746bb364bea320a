"""A prefix tree that only pretends, for restorations."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.sglang import Request
from sglang.srt.mem_cache.unified_cache.cache_action import BackupKV
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from tokenflow_sgl.engine.restore.restorations import Restorations

HEADS = (
    "tokenflow_sgl.engine.restore.restorations.tokens_in_tree",
    "tokenflow_sgl.engine.restore.open_restorations.tokens_in_tree",
)
"""What says how much of a request the tree has."""
KNOWN: Any = {"rate": 1000.0, "prefill": (0.0, 0.001, 0.0)}
"""Figures of a pass."""
PAGE = 16


class Operation(SimpleNamespace):
    """A fetch of SGLang's from the storage; any two of them differ."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


class Tree:
    """Keeps what it is told to end."""

    page_size = PAGE
    tree_components = (ComponentType.FULL,)
    cache_controller = SimpleNamespace(mem_pool_device_allocator=None)

    def __init__(self) -> None:
        self.ongoing_prefetch: dict[str, Any] = {}
        self.released: list[tuple[str, int]] = []
        self.fetched_again: list[Any] = []
        self.is_write_back = False
        self.backed_up = True
        self.token_to_kv_pool_allocator: Any = SimpleNamespace(available_size=lambda: 1 << 20)
        self.evictable_size: Callable[[], int] = lambda: 0
        self.host_full = False
        self._storage_prefetch_hit_remaining_by_reqid: dict[str, int] = {}
        self.unfulfilled: list[tuple[int, str]] = []
        self.storage_metrics_collector = SimpleNamespace(
            log_storage_prefetch_unfulfilled_tokens=lambda tokens, reason: self.unfulfilled.append(
                (tokens, reason)
            )
        )

    def release_aborted_request(self, handle: str) -> None:
        """As SGLang: what has arrived is given back."""
        fetch = self.ongoing_prefetch.pop(handle).operation
        self.released.append((handle, fetch.completed_tokens))
        self._storage_prefetch_hit_remaining_by_reqid.pop(handle, None)

    # How SGLang accounts for what the storage has of a request.
    _finish_storage_prefetch = UnifiedRadixCache._finish_storage_prefetch
    _resolve_storage_prefetch_tokens = UnifiedRadixCache._resolve_storage_prefetch_tokens

    def is_root(self, node: str) -> bool:
        return node == "root"

    def is_backuped(self, node: str) -> bool:
        return self.backed_up

    tree_core = SimpleNamespace(
        collect_path_info=lambda nodes: [[SimpleNamespace(node_id=each)] for each in nodes]
    )

    def _execute_and_commit_kv_backup(self, action: BackupKV) -> int:
        self.backed_up = not self.host_full
        return int(self.backed_up)


def operation() -> Any:
    """SGLang's, before the storage has said what it has."""
    made = Operation(host_indices=None, completed_tokens=0, storage_start=0, handle="r")
    made.pool_transfers, made.prefix_keys = None, None
    return made


def allocate(tree: Tree, handle: str, tokens: int = 320) -> Any:
    """The storage has said that it has so many tokens."""
    info = tree.ongoing_prefetch[handle]
    info.operation.host_indices = info.host_indices = list(range(tokens))
    info.operation.tokenflow_tail.end = tokens
    info.operation.hash_value = [str(page) for page in range(tokens // PAGE)][::-1]
    info.operation.tokenflow_tail.allocated(tokens)
    return info.operation


def begin(restorations: Restorations, tree: Tree, handle: str) -> Any:
    """SGLang has begun a prefetch for a request."""
    request = Request(
        cache_request_handle=handle,
        positional_embed_overrides=None,
        full_untruncated_fill_ids=[0] * 340,
        prefix_len=0,
        best_match_node="head",
    )
    tree.ongoing_prefetch[handle] = SimpleNamespace(operation=operation(), host_indices=None)
    restorations.watch(request)
    return request


def patch_heads(monkeypatch: pytest.MonkeyPatch, head_of: Callable[[Any, Any], int]) -> None:
    """The tree has as many tokens of a request as this says of (tree, request)."""
    for name in HEADS:
        monkeypatch.setattr(name, head_of)


def patch_join(monkeypatch: pytest.MonkeyPatch, join: Callable[..., int]) -> None:
    """The tree takes a tail by this in place of `join_fetch`."""
    monkeypatch.setattr("tokenflow_sgl.engine.restore.open_restorations.join_fetch", join)
