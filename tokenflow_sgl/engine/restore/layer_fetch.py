"""Fetches from HiCache's storage that bring a prefix layer by layer, the last layer first.

It is CacheFlow's layer-wise way. SGLang's operation stays what it is, with host memory for all
layers of all tokens. What has arrived is counted in layers: for SGLang no token has arrived before
all of it has, and all of the operation's host memory is given back here, when the device has read
it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection
from typing import Any

from sglang.srt.managers.cache_controller import PrefetchAck

from tokenflow_sgl.costs import LatestRate
from tokenflow_sgl.engine.restore.fetched_layer_copies import FetchedLayerCopies
from tokenflow_sgl.engine.restore.layer_reads import read_layers
from tokenflow_sgl.engine.restore.tail_fetch import BATCH_TOKENS, TailFetch, set_tail, tail_of
from tokenflow_sgl.engine.sglang.controller import Controller, StorageFetch
from tokenflow_sgl.engine.sglang.tree import Tree
from tokenflow_sgl.engine.shared_clock import local_time
from tokenflow_sgl.engine.telemetry.sparing import Sparing

logger = logging.getLogger(__name__)
logger.addFilter(Sparing())

LAYER_SECONDS = 0.002
"""Time that a batch of layers should take, unless one takes longer: what a short prefix, which is
computed in ten milliseconds, may have to wait for the last one at most."""


class LayerFetch(TailFetch):
    """One operation of SGLang's, fetched layer by layer.

    Attributes:
        layers: Of the model.
        tokens: Of the stored prefix.
        copies: Of what has arrived, to the device.
        landed: Layers that have arrived, from the last one on, as all ranks have agreed.
        first: Layers below this one are computed, and are not fetched.
        taken: The prefix tree has the host's memory.
    """

    def __init__(
        self,
        layers: int,
        tokens: int,
        page: int,
        rate: LatestRate,
        copies: FetchedLayerCopies,
        expected: float,
    ) -> None:
        least, most = BATCH_TOKENS
        wanted = min(expected * LAYER_SECONDS, most) if expected > 0.0 else least
        self._at_once = max(int(wanted * layers / tokens), 1)
        super().__init__(max(tokens * self._at_once // layers // page, 1), rate, copies)
        self.layers = layers
        self.tokens = tokens
        self.landed = 0
        self.first = 0
        self.taken = False

    @property
    def by_layers(self) -> FetchedLayerCopies:
        """Copies of what is fetched, layer by layer."""
        assert isinstance(self.copies, FetchedLayerCopies)
        return self.copies

    @property
    def left(self) -> int:
        """Tokens that take as long as the layers that are still to come."""
        missing = max(self.layers - self.first - self.landed, 0)
        return 0 if self._enough(self.landed) else -(-self.tokens * missing // self.layers)

    def _enough(self, landed: int) -> bool:
        # One batch is fetched in any case: it measures the link.
        return bool(landed) and self.tokens_of(landed) >= self.enough

    def fetch(
        self, controller: Controller, operation: StorageFetch, batches: int | None = None
    ) -> None:
        """Fetch batch by batch; the ranks agree on each, so all of them report as many.

        batches: it has one turn, so all.
        """
        keys, slots, landed, goes_on = operation.hash_value, operation.host_indices, 0, True
        for stop in range(self.layers, 0, -self._at_once):
            some = range(max(stop - self._at_once, self.first, 0), stop)
            if operation.is_terminated() or not some or self._enough(landed):
                goes_on = False
            if goes_on:
                began = local_time()
                goes_on = self._read(controller, keys, slots, some)
            if goes_on:
                landed += len(some)
                self.copies.copy(landed)
                self._rate.observe(self.tokens_of(len(some)), local_time() - began)
            controller.prefetch_sync_queue.put(
                PrefetchAck(rid=operation.request_id, completed_tokens=landed, operation=operation)
            )

    def tokens_of(self, layers: int) -> int:
        """Tokens that have as many bytes in all layers as the prefix has in these."""
        return self.tokens * layers // self.layers

    def _read(self, controller: Controller, keys: list[str], slots: Any, some: range) -> bool:
        try:
            return read_layers(controller, keys, slots, some)
        except Exception as error:
            logger.warning(
                "tokenflow: fetching KV failed (%s: %s); what is missing is computed",
                type(error).__name__,
                error,
            )
            return False


class LayerMemory:
    """The host's memory of fetches layer by layer, until nothing uses it any more.

    Args:
        tree: SGLang's.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._operations: list[Any] = []

    def __bool__(self) -> bool:
        return bool(self._operations)

    def keep(self, operation: StorageFetch) -> None:
        """Keep the host memory of a fetch that begins."""
        operation.ack_releases_incomplete_host_indices = False
        self._operations.append(operation)

    def unused(self, fetching: Collection[Any]) -> int:
        """Number of fetches, from the first on, of which nothing is under way on this rank.

        fetching: operations that SGLang's threads have not ended.
        """
        unused = itertools.takewhile(lambda each: self._unused(each, fetching), self._operations)
        return sum(1 for _ in unused)

    def release(self, number: int) -> None:
        """Give the host memory of the first `number` fetches back to SGLang, on all ranks."""
        for operation in self._operations[:number]:
            fetch = tail_of(operation)
            if not (isinstance(fetch, LayerFetch) and fetch.taken):
                self._tree.cache_controller.append_host_mem_release(operation.host_indices)
        del self._operations[:number]

    def _unused(self, operation: StorageFetch, fetching: Collection[Any]) -> bool:
        info = self._tree.ongoing_prefetch.get(operation.handle)
        if operation in fetching or (info is not None and info.operation is operation):
            return False
        fetch = tail_of(operation)
        return not isinstance(fetch, LayerFetch) or fetch.taken or fetch.by_layers.ended


def by_layers_from_here(operation: StorageFetch, fetch: LayerFetch) -> None:
    """From now on this operation, whose host memory is just allocated, is fetched so."""
    fetch.end = int(operation.storage_start) + fetch.tokens
    set_tail(operation, fetch)


def take_layers(controller: Controller, acknowledged: int) -> None:
    """SGLang is about to take so many reports of fetches: those of layers are for us.

    As all ranks do at the same time, and each report was agreed on.
    """
    queue = controller.ack_prefetch_queue
    with queue.mutex:  # SGLang's threads may add to it
        taken = list(itertools.islice(queue.queue, acknowledged))
    for report in taken:
        fetch = tail_of(report.operation)
        if isinstance(fetch, LayerFetch) and report.completed_tokens is not None:
            fetch.landed, report.completed_tokens = int(report.completed_tokens), None
