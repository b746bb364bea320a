"""Carries decisions out in SGLang's scheduler: the verbs of `lifecycle.Actuator`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenflow_sgl.contract import Growth, Preempt, Write
from tokenflow_sgl.engine.kv.device_pools import DevicePools
from tokenflow_sgl.engine.kv.load_ring import Loader
from tokenflow_sgl.engine.kv.preempt import Pauser
from tokenflow_sgl.engine.kv.write import Writer
from tokenflow_sgl.engine.queue_index import QueueIndex
from tokenflow_sgl.lifecycle import Missing, give_up
from tokenflow_sgl.lifecycle.actuator import Action
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.offload import DeviceRoom


class EngineActuator:
    """The live engine's streams.

    Args:
        scheduler: SGLang's, with its batches and its memory.
        table: Of the live streams.
        pauser: Takes streams out of the batch.
        writer: Copies to the host.
        loader: Copies back.

    Attributes:
        offered: Requests that admission may see in this pass, in their order.
        chosen: Whether these were chosen by the policy; otherwise they are all there are.
        recompute: Requests whose KV on the host is not loaded but computed.
        growth: How the KV of running streams grows, as the scheduler has learned.
        pools: SGLang's on the device.

    Raises:
        UnsupportedError: The pools are of a kind that was not tried.
    """

    def __init__(
        self,
        scheduler: Any,
        table: StreamTable[Any],
        pauser: Pauser,
        writer: Writer,
        loader: Loader,
    ) -> None:
        self._scheduler = scheduler
        self._table = table
        self._pauser = pauser
        self._writer = writer
        self._loader = loader
        self._queue = QueueIndex(lambda req: req in table)
        self.pools = DevicePools(scheduler)
        self._batch: Any = None
        self._running: set[Any] | None = None
        self.growth = Growth()
        self.offered: list[Any] = []
        self.chosen = False
        self.recompute: frozenset[Any] = frozenset()

    def begin(self, running_batch: Any) -> None:
        """A pass begins, with this batch running."""
        self._batch, self._running = running_batch, None

    # ---- the memory -----------------------------------------------------------------

    mirrored = True
    """Whether the host also keeps copies of what is on the device."""

    @property
    def writes(self) -> bool:
        """Whether KV of running streams can be copied to the host."""
        return self._writer.active

    @property
    def untouchable(self) -> list[Any]:
        """Requests that hold memory and cannot be preempted now: one in its prefill."""
        chunked = self._scheduler.chunked_req
        return [] if chunked is None else [chunked]

    @property
    def free(self) -> int:
        """Device KV tokens that can be had at once: free, unlocked in the tree, or lent to copies.

        Copies of a restoration's tail give their memory back when SGLang lacks it. The request's
        own need has it in already.
        """
        restorations = self._scheduler.tf_restorations
        lent = 0 if restorations is None else restorations.copy_memory.held_tokens
        return self.pools.kv_free + int(lent)

    @property
    def total(self) -> int:
        """KV tokens of the device."""
        return int(self._scheduler.max_total_num_tokens)

    @property
    def free_share(self) -> float:
        """Free part of the device pool that has the least."""
        kv = float(self.free / self.total)
        total = self.pools.window_total
        return min(kv, self.pools.window_free / total) if total else kv

    @property
    def promised(self) -> int:
        """Tokens that the prefill under way still needs."""
        chunked = self._scheduler.chunked_req
        if chunked is None or self._scheduler.tf_split is not None:
            return 0  # one whose layers are computed has all of its memory
        return max(int(chunked.seqlen - chunked.prefix_len), 0)

    @property
    def room(self) -> DeviceRoom:
        """By SGLang's allocator and prefix tree."""
        return DeviceRoom(self.free, self.promised, len(self._computing), self.growth)

    @property
    def _computing(self) -> list[Any]:
        """Requests that compute now, or have a result in flight."""
        computing = {*self._batch.reqs, *self._pauser.draining, *self.in_flight}
        return [*computing, *self.untouchable]

    @property
    def queue(self) -> QueueIndex:
        """What is in SGLang's waiting queue."""
        return self._queue.look(self._scheduler.waiting_queue)

    @property
    def in_flight(self) -> set[Any]:
        """Requests with a result that is launched and not processed."""
        return {req for batch, _ in self._scheduler.result_queue for req in batch.reqs}

    def memory_is_coming(self, batch: Any) -> bool:
        """Whether memory that is locked now can be evicted once streams have drained or copies end.

        Copies of what the batch itself locks free nothing: to wait for those would only delay the
        retraction that SGLang has to do anyway. Nor do locks without a copy: a session's, say.
        """
        if self._pauser.draining:
            return True
        scheduler = self._scheduler
        tree = scheduler.tree_cache
        if not scheduler.enable_hierarchical_cache:
            return False
        if not (tree.ongoing_write_through or tree.ongoing_load_back):
            return False
        computing = {*batch.reqs, scheduler.chunked_req} - {None}
        # What several of them share is counted for each: then SGLang retracts, at worst.
        locked = sum(int(req.kv.cache_protected_len) for req in computing)
        return int(tree.protected_size()) > locked

    # ---- the verbs ------------------------------------------------------------------

    def accepts(self, action: Action) -> bool:
        """By what only SGLang's requests and batches say."""
        req = self._table.request(action.slot)
        if req is None or req.finished():
            return False
        if isinstance(action, Preempt):
            return (
                self._runs(req)
                and req is not self._scheduler.chunked_req
                and req.to_finish is None
                and bool(self._table.preemptible[action.slot])
            )
        if isinstance(action, Write):
            return self._runs(req) and not req.skip_radix_cache_insert
        return (
            self._scheduler.enable_hierarchical_cache
            and req in self._pauser.paused
            and req.to_finish is None
        )

    def _runs(self, req: Any) -> bool:
        if self._running is None:  # most passes ask of no stream
            self._running = set(self._batch.reqs)
        return req in self._running

    def write(self, writes: Sequence[Write]) -> int:
        """Publish to the prefix tree, which HiCache backs up."""
        return self._writer.apply(writes)

    def preempt(self, slots: Sequence[int]) -> None:
        """Take these streams out of the running batch."""
        victims = [self._table.request(slot) for slot in slots]
        self._pauser.preempt(victims, self._batch, self.in_flight)

    def missing(self, slot: int) -> Missing:
        """By SGLang's prefix tree."""
        return self._loader.missing(self._table.request(slot))

    def load(self, slot: int, tokens: int) -> int:
        """Start a load that no step waits for."""
        return self._loader.load(self._table.request(slot), self._computing, tokens)

    def give_up(self, slot: int) -> None:
        """SGLang's tree may evict what was loaded."""
        self._loader.give_up(self._table.request(slot))

    def offer(
        self, slots: Sequence[int] | None, recompute: frozenset[int], hidden: frozenset[int]
    ) -> None:
        """Choose what SGLang's admission sees.

        Requests that the table does not know (health checks, rejected ones) go first: they are not
        the policy's business.
        """
        waiting, table = self._scheduler.waiting_queue, self._table
        paused = dict.fromkeys(
            req for req in self._pauser.paused if req.to_finish is None and req not in self._loader
        )
        self.recompute = frozenset(map(table.request, recompute))
        self.chosen = slots is not None
        queue = self.queue  # looked at in any case, or an idle server would hold what had waited
        if slots is None:
            self.offered = [*sorted(paused, key=table.rank), *waiting]
            if hidden:
                away = set(map(table.request, hidden))
                self.offered = [req for req in self.offered if req not in away]
            return
        chosen = map(table.request, (slot for slot in slots if slot not in hidden))
        self.offered = [
            *queue.untracked,
            *(req for req in chosen if req in queue.requests or req in paused),
        ]

    @property
    def busy(self) -> bool:
        """Whether something runs, is about to, or is to be admitted beside the policy's choice."""
        scheduler = self._scheduler
        return bool(
            self._batch.reqs
            or scheduler.chunked_req is not None
            or self._pauser.draining
            or self._loader.request is not None
            or scheduler.result_queue
            or self.queue.untracked
        )

    @property
    def prefetching(self) -> bool:
        """One at a time: SGLang has counters for three, and two steps may need one each."""
        return self._scheduler.enable_hierarchical_cache and self._loader.taken

    def copying(self, slot: int) -> bool:
        """Whether a chunk of it is under way."""
        return self._loader.request is self._table.request(slot)

    # ---- what lands -----------------------------------------------------------------

    def landed(self, now: float) -> None:
        """A copy may have landed on all ranks: its stream is ready, or waits for the rest."""
        request = self._loader.landed()
        if request is not None and request in self._pauser.paused:
            self._table.phases.landed(self._table.slot(request), now)

    def settle(self, now: float) -> None:
        """The engine is paused: all copies end, and what was loaded in part is given up."""
        request = self._loader.settle()
        if request is not None and request in self._table:
            self._table.phases.landed(self._table.slot(request), now)
        self.give_way(now)

    def give_way(self, now: float) -> bool:
        """Give up what is loaded in part; returns whether there was any."""
        return give_up(self._table.phases, self, now)
