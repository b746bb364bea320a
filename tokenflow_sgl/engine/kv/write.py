"""Copies KV of running streams to the host: publishes it to the prefix tree, whose HiCache writes.

What a running stream has computed becomes a node of the tree that the stream itself locks, by the
call with which SGLang publishes a chunked prefill. HiCache backs new nodes up as soon as they are
inserted (`--hicache-write-policy write_through`), behind the step in flight.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokenflow_sgl.contract import Write
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
        """Whether HiCache writes what is published; with other write policies it does not.

        Not of recurrent states: a part of a stream would take a state of its own in the tree.
        """
        tree = self._tree_cache
        if tree.cache_controller is None or tree.supports_mamba():
            return False
        return bool(tree.write_through_threshold == 1 and not tree.is_write_back)

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
            # The array of ids lags the output until the next decode step is prepared.
            req.refresh_fill_ids()
            self._tree_cache.checkpoint(req, up_to=end)
            copied = int(req.kv.cache_protected_len) - before
            self._table.on_host[write.slot] += copied
            self._table.written[write.slot] += copied
            written += copied
        if written and self._leaves_at_once:
            # Else they would leave behind the step that is launched next.
            self._tree_cache.flush_pending_backups()
        return written

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
        self._recorder.released(tail, needed=needed, held=held)
