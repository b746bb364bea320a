"""The body of a server that prefills and decodes: what it does with streams and their memory.

It carries decisions out (the verbs of `lifecycle.Actuator`), and answers what the core asks about
memory, about requests that leave and resume, and about a pause of the engine. Bodies of other
servers differ in single answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenflow_sgl.contract import Growth, Preempt, Write
from tokenflow_sgl.engine.book import Book
from tokenflow_sgl.engine.extension import Extensions
from tokenflow_sgl.engine.kv.backups import copies_at_eviction
from tokenflow_sgl.engine.kv.device_pools import DevicePools
from tokenflow_sgl.engine.kv.link_rates import TransferWatch
from tokenflow_sgl.engine.kv.load_ring import Loader
from tokenflow_sgl.engine.kv.preempt import Pauser
from tokenflow_sgl.engine.kv.write import Writer
from tokenflow_sgl.engine.prefill_adder import AdmissionLimits, adder_class
from tokenflow_sgl.engine.queue_index import QueueIndex
from tokenflow_sgl.engine.sglang.batch import ReqBatch
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.worker import LiveScheduler
from tokenflow_sgl.engine.telemetry.prometheus import Recorder
from tokenflow_sgl.engine.telemetry.sampling import Effort
from tokenflow_sgl.engine.unsupported import undisturbed_reason
from tokenflow_sgl.lifecycle import Missing, give_up
from tokenflow_sgl.lifecycle.actuator import Action
from tokenflow_sgl.offload import DeviceRoom


@dataclass(frozen=True, slots=True)
class StreamMemory:
    """Where KV of streams lies, and what copies it.

    Attributes:
        pools: SGLang's on the device.
        writer: Of running streams, to the host.
        loader: Of paused streams, to the device.
        watch: Measures both.
    """

    pools: DevicePools
    writer: Writer
    loader: Loader
    watch: TransferWatch


class UnifiedBody:
    """The streams of one rank.

    Args:
        scheduler: SGLang's, with its batches and its memory.
        book: Of the live streams.
        memory: Of streams.
        pauser: Takes streams out of the batch.
        extensions: Which may hold memory.
        recorder: Counts what bodies do by themselves.

    Attributes:
        offered: Requests that admission may see in this pass, in their order.
        chosen: Whether these were chosen by the policy; otherwise they are all there are.
        recompute: Requests whose KV on the host is not loaded but computed.
        growth: How the KV of running streams grows, as the scheduler has learned.
    """

    without_hicache = "off (evicted KV is recomputed)"
    """What a line of the log says where there is none."""

    def __init__(
        self,
        scheduler: LiveScheduler,
        book: Book,
        memory: StreamMemory,
        pauser: Pauser,
        extensions: Extensions,
        recorder: Recorder,
    ) -> None:
        self._scheduler = scheduler
        self._book = book
        self._table = book.table
        self.memory = memory
        self.pools, self._loader = memory.pools, memory.loader
        self.pauser = pauser
        self._extensions = extensions
        self._recorder = recorder
        self._queue = QueueIndex(lambda req: req in book.table)
        self._batch: Any = None
        self._running: set[Any] | None = None
        self.growth = Growth()
        self.offered: list[Any] = []
        self.chosen = False
        self.recompute: frozenset[Any] = frozenset()

    def begin(self, running_batch: ReqBatch) -> None:
        """A pass begins, with this batch running."""
        self._batch, self._running = running_batch, None

    # ---- the memory -----------------------------------------------------------------

    @property
    def mirrored(self) -> bool:
        """Whether the host keeps copies of what is on the device, whoever needs their memory."""
        return not copies_at_eviction(self._scheduler.tree_cache)

    @property
    def writes(self) -> bool:
        """Whether KV of running streams can be copied to the host."""
        return self.memory.writer.active

    @property
    def untouchable(self) -> list[Any]:
        """Requests that hold memory and cannot be preempted now: one in its prefill."""
        chunked = self._scheduler.chunked_req
        return [] if chunked is None else [chunked]

    @property
    def free(self) -> int:
        """Device KV tokens that can be had at once: free, unlocked in the tree, or lent.

        An extension gives back what it was lent when SGLang lacks it; the need of the request that
        it was lent for has it in already.
        """
        return self.pools.kv_free + self._extensions.lent_tokens

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
        if chunked is None or self._extensions.has_its_memory(chunked):
            return 0
        return max(int(chunked.seqlen - chunked.prefix_len), 0)

    @property
    def room(self) -> DeviceRoom:
        """Device memory that can be taken, by SGLang's allocator and prefix tree."""
        return DeviceRoom(self.free, self.promised, len(self._computing), self.growth)

    @property
    def _computing(self) -> list[Any]:
        """Requests that compute now, or have a result in flight."""
        computing = {*self._batch.reqs, *self.pauser.draining, *self.in_flight}
        return [*computing, *self.untouchable]

    @property
    def queue(self) -> QueueIndex:
        """What is in SGLang's waiting queue."""
        return self._queue.look(self._scheduler.waiting_queue)

    @property
    def in_flight(self) -> set[Any]:
        """Requests with a result that is launched and not processed."""
        return {req for batch, _ in self._scheduler.result_queue for req in batch.reqs}

    def memory_is_coming(self, batch: ReqBatch) -> bool:
        """Whether memory that is locked now can be evicted once streams have drained or copies end.

        Copies of what the batch itself locks free nothing: to wait for those would only delay the
        retraction that SGLang has to do anyway. Nor do locks without a copy: a session's, say.
        """
        if self.pauser.draining:
            return True
        scheduler = self._scheduler
        tree = scheduler.tree_cache
        if not scheduler.enable_hierarchical_cache:
            return False
        if not (tree.ongoing_write_through or tree.ongoing_load_back):
            return False
        chunked = scheduler.chunked_req
        computing = {*batch.reqs, *([] if chunked is None else [chunked])}
        # What several of them share is counted for each: then SGLang retracts, at worst.
        locked = sum(int(req.kv.cache_protected_len) for req in computing)
        return int(tree.protected_size()) > locked

    # ---- the verbs ------------------------------------------------------------------

    def accepts(self, action: Action) -> bool:
        """Whether SGLang's requests and batches allow this action on a stream."""
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
            # A policy of one's own may ask for copies where HiCache makes none.
            return self.writes and self._runs(req) and not req.skip_radix_cache_insert
        return (
            self._scheduler.enable_hierarchical_cache
            and req in self.pauser.paused
            and req.to_finish is None
        )

    def _runs(self, req: Req) -> bool:
        if self._running is None:  # most passes ask of no stream
            self._running = set(self._batch.reqs)
        return req in self._running

    def _req(self, slot: int) -> Req:
        """The request of a slot that a decision names, which has one."""
        found: Any = self._table.request(slot)
        return found  # type: ignore[no-any-return]

    def write(self, writes: Sequence[Write]) -> int:
        """Publish to the prefix tree, which HiCache backs up."""
        return self.memory.writer.apply(writes)

    def preempt(self, slots: Sequence[int]) -> None:
        """Take these streams out of the running batch."""
        victims = [self._req(slot) for slot in slots]
        self.pauser.preempt(victims, self._batch, self.in_flight)

    def missing(self, slot: int) -> Missing:
        """What of a paused stream's KV is not on the device, by SGLang's prefix tree."""
        return self._loader.missing(self._req(slot))

    def load(self, slot: int, tokens: int) -> int:
        """Start a load that no step waits for."""
        return self._loader.load(self._req(slot), self._computing, tokens)

    def give_up(self, slot: int) -> None:
        """SGLang's tree may evict what was loaded."""
        self._loader.give_up(self._req(slot))

    def offer(
        self, slots: Sequence[int] | None, recompute: frozenset[int], hidden: frozenset[int]
    ) -> None:
        """Choose what SGLang's admission sees.

        Requests that the table does not know (health checks, rejected ones) go first: they are not
        the policy's business.
        """
        waiting, table = self._scheduler.waiting_queue, self._table
        paused = dict.fromkeys(
            req for req in self.pauser.paused if req.to_finish is None and req not in self._loader
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
            or self.pauser.draining
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

    @property
    def loses_retracted(self) -> bool:
        """Whether KV of what SGLang retracts by itself is computed anew by another server."""
        return False

    # ---- requests join, leave and resume --------------------------------------------

    def newest(self, queue: Sequence[Req]) -> Any:
        """The request that SGLang has queued last; None: none is queued."""
        return queue[-1] if queue else None

    def undisturbed(self, req: Req) -> str | None:
        """Why a newcomer must not be preempted; None: it may be."""
        return undisturbed_reason(req)

    def rejoined(self, running_batch: ReqBatch) -> Any:
        """The running batch, with those that were chosen and need no prefill to go on."""
        return running_batch

    def forget(self, req: Req) -> None:
        """Drop what is kept of a stream that has ended."""
        self._loader.give_up(req)
        self.pauser.keeper.give_up(req)

    def releases(self, req: Req) -> None:
        """SGLang is about to drop a request that holds no row."""

    def drop(self, req: Req) -> None:
        """A paused stream was aborted, and gives back what it holds."""

    def take_aborted(self) -> list[Any]:
        """Aborted requests that SGLang does not look for, to be finished with their output."""
        return []

    def held_batches(self) -> list[Any]:
        """Batches of requests that SGLang's search for aborted ones is to see, beside its own."""
        return []

    @property
    def owners(self) -> list[Any]:
        """Requests with memory that SGLang does not look for: they are in no batch."""
        return self.pauser.draining

    # ---- on a decode server ---------------------------------------------------------

    def admit_arrivals(self, admit: Callable[[], None], effort: Effort) -> None:
        """SGLang gives memory to what was retracted and to what arrives, as far as it was chosen.

        Args:
            admit: SGLang's own way.
            effort: Around what is added to it.
        """
        admit()

    def join(self, running_batch: ReqBatch, join: Callable[[Any], Any], effort: Effort) -> Any:
        """The batch of what joins the running batch, all of whose KV is here.

        Args:
            running_batch: Of the streams that decode.
            join: SGLang's own way.
            effort: Around what is added to it.
        """
        return join(running_batch)

    # ---- memory runs short ----------------------------------------------------------

    def skips_decode(self, batch: ReqBatch, now: float) -> bool:
        """Whether a decode step is skipped, as its memory is on its way.

        KV of draining streams, and what is being copied, is locked for a few steps. SGLang would
        retract every other stream, and end the last one with "out of memory". Streams that are
        loaded in part give way first.
        """
        short = not batch.is_empty() and not batch.check_decode_mem()
        if short and self.give_way(now):
            short = not batch.check_decode_mem()
        return short and self.memory_is_coming(batch)

    def adder(self, limits: AdmissionLimits) -> type:
        """The class by which SGLang admits prefills: by need, as far as `limits` say."""
        return adder_class(limits)

    def host_tokens(self) -> int:
        """KV tokens that the host has room for."""
        return host_pool_tokens(self._scheduler)

    def host_free(self) -> int:
        """KV tokens of the host that nothing is in; all ranks of a group have the same."""
        host = host_pool(self._scheduler)
        return 0 if host is None else int(host.available_size())

    # ---- the step is launched, and the engine is paused or idle ---------------------

    def launched(self) -> None:
        """SGLang has chosen the batch that runs next."""

    def engine_pauses(self) -> None:
        """SGLang is about to pause the engine."""

    def engine_paused(self, *, retracted: bool, now: float) -> None:
        """The engine is paused: the weights may change now, so all copies end.

        Args:
            retracted: No stream keeps its KV.
            now: Seconds on the clock of decisions.
        """
        if retracted:
            self.pauser.drop_draining()
        self.settle(now)

    def idle(self, *, ignore_waiting: bool) -> bool:
        """Whether no stream drains, is paused or is loaded, whosever the load was.

        Args:
            ignore_waiting: Paused streams do not count, as SGLang's queue does not.
        """
        if self.pauser.draining or self._loader.busy or self.pauser.keeper.busy:
            return False
        return ignore_waiting or not self.pauser.paused

    # ---- what lands -----------------------------------------------------------------

    def landed(self, now: float) -> None:
        """A copy may have landed on all ranks: its stream is ready, or waits for the rest."""
        request = self._loader.landed()
        if request is not None and request in self.pauser.paused:
            self._table.phases.landed(self._table.slot(request), now)

    def settle(self, now: float) -> None:
        """The engine is paused: all copies end, and what was loaded in part is given up."""
        self.pauser.keeper.clear()  # the tree may be thrown away
        request = self._loader.settle()
        if request is not None and request in self._table:
            self._table.phases.landed(self._table.slot(request), now)
        self.give_way(now)

    def give_way(self, now: float) -> bool:
        """Give up what is loaded in part; returns whether there was any."""
        return give_up(self._table.phases, self, now)


def host_pool_tokens(scheduler: LiveScheduler) -> int:
    """KV tokens of SGLang's pool on the host; 0: there is none."""
    host = host_pool(scheduler)
    return 0 if host is None else int(host.size)


def host_pool(scheduler: LiveScheduler) -> Any:
    """SGLang's pool on the host; None: there is none."""
    return getattr(scheduler.tree_cache.cache_controller, "mem_pool_host", None)
