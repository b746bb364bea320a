"""Copies KV of running streams to the host: publishes it to the prefix tree, whose HiCache writes.

What a running stream has computed becomes a node of the tree that the stream itself locks, by the
call with which SGLang publishes a chunked prefill. HiCache backs new nodes up as soon as they are
inserted (`--hicache-write-policy write_through`), behind the step in flight; with `write_back` it
does not, and we do (see `backups`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokenflow_sgl.contract import Write
from tokenflow_sgl.engine.kv.backups import back_up, copies_at_eviction, tokens_of, uncopied
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.tree import Tree
from tokenflow_sgl.engine.telemetry.prometheus import Recorder
from tokenflow_sgl.lifecycle.table import StreamTable


class Writer:
    """Carries out a decision's writes, and counts what they were good for."""

    def __init__(
        self, tree_cache: Tree, table: StreamTable[Any], recorder: Recorder, page: int
    ) -> None:
        self._tree_cache = tree_cache
        self._table = table
        self._recorder = recorder
        self._page = page

    @property
    def active(self) -> bool:
        """Whether what is published is copied: by HiCache, or by us where it waits for evictions.

        With write_through_selective by neither. Not of recurrent states: a part of a stream would
        take a state of its own in the tree.
        """
        tree = self._tree_cache
        if tree.cache_controller is None or tree.supports_mamba():
            return False
        return bool(tree.is_write_back or tree.write_through_threshold == 1)

    @property
    def _leaves_at_once(self) -> bool:
        """Whether starting copies does not wait for the device.

        Only the kernels take indices that are on the device. For the others HiCache fetches them
        first, and the scheduler's thread stands still meanwhile; so these copies wait until SGLang
        starts its own, with its next result.
        """
        return bool(self._tree_cache.cache_controller.io_backend == "kernel")

    def apply(self, writes: Iterable[Write]) -> int:
        """Publish and write; returns the tokens that are copied."""
        written = 0
        for write in writes:
            req = self._table.request(write.slot)
            if req is None:
                continue
            # Of the last token so far the KV is being computed.
            computed = len(req.origin_input_ids) + len(req.output_ids) - 1
            before = int(req.kv.cache_protected_len)
            end = min(before + write.tokens, computed) // self._page * self._page
            if end <= before:
                continue
            backs_up = copies_at_eviction(self._tree_cache)
            if backs_up and req.session is not None:
                continue  # its nodes are the session's own
            if backs_up and not self._has_room(req, end - before):
                # It is asked again when there is as much more of it.
                self._table.on_host[write.slot] += end - before
                continue
            # The array of ids lags the output until the next decode step is prepared.
            req.refresh_fill_ids()
            self._tree_cache.checkpoint(req, up_to=end)
            published = copied = int(req.kv.cache_protected_len) - before
            if backs_up:
                copied = back_up(self._tree_cache, req.last_node)
            self._table.on_host[write.slot] += published
            self._table.written[write.slot] += copied
            written += copied
        if written and self._leaves_at_once:
            # Else they would leave behind the step that is launched next.
            self._tree_cache.flush_pending_backups()
        return written

    def _has_room(self, req: Req, tokens: int) -> bool:
        """Whether the host has room for what comes along with these tokens of a stream.

        That is what was published before without being copied, the prompt above all: the policy
        knows nothing of it. It shall drop no other copy, as that may be of a paused stream.
        """
        along = tokens_of(uncopied(self._tree_cache, req.last_node))
        free = self._tree_cache.cache_controller.mem_pool_host.available_size()
        return not along or along + tokens <= int(free)

    def started(self, req: Req) -> None:
        """A stream's prefill starts: at its end the tree has all of it."""
        slot = self._table.slot(req)
        length = len(req.origin_input_ids) + len(req.output_ids)
        self._table.on_host[slot] = length // self._page * self._page
        self._table.written[slot] = 0

    def released(self, req: Req) -> None:
        """A preempted stream is about to go to the tree: what it has left is copied now."""
        held = int(req.owned_kv_len())
        tail = held - int(req.kv.cache_protected_len)
        needed = int(self._table.written[self._table.slot(req)]) if req in self._table else 0
        if copies_at_eviction(self._tree_cache):
            # Some of what was published has never been copied, or its copy made room for others.
            lacking = tokens_of(uncopied(self._tree_cache, req.last_node))
            tail, needed = tail + lacking, min(needed, held - tail - lacking)
        self._recorder.released(tail, needed=needed, held=held)
