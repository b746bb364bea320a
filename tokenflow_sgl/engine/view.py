"""What a policy sees of SGLang's scheduler."""

from __future__ import annotations

import dataclasses

from sglang.srt.runtime_context import get_parallel

from tokenflow_sgl.contract import Memory, ModelShape, Pool, State, Tier
from tokenflow_sgl.costs import StepTimer
from tokenflow_sgl.engine.body.unified import UnifiedBody
from tokenflow_sgl.engine.book import Book
from tokenflow_sgl.engine.kv.device_pools import STATES_KEPT
from tokenflow_sgl.engine.kv.prompt_match import prompt_match, use_of_paused
from tokenflow_sgl.engine.kv.prompt_path import prompt_path
from tokenflow_sgl.engine.sglang.worker import LiveScheduler
from tokenflow_sgl.lifecycle import CachedPrefixes, PausedCopies, SharedPrefixes


class View:
    """Builds the states of one scheduler.

    Args:
        scheduler: SGLang's.
        book: Of the live streams.
        body: Knows the memory.
        timer: Has learned from the steps.
    """

    def __init__(
        self,
        scheduler: LiveScheduler,
        book: Book,
        body: UnifiedBody,
        timer: StepTimer,
    ) -> None:
        self._scheduler = scheduler
        self._table = table = book.table
        self._body = body
        self._clock = book.clock
        self._timer = timer
        self._cached = CachedPrefixes(table.phases, prompt_match(scheduler.tree_cache, table))
        self._paused = PausedCopies(table.phases, use_of_paused(scheduler.tree_cache, table))
        self._prefixes = None
        tree = scheduler.tree_cache
        # Where a match needs a kept state, or a window that is still there, equal tokens do not say
        # that a newcomer takes them over.
        whole = not (tree.supports_mamba() or tree.supports_swa())
        if whole and tree.supports_prefix_sharing():
            path = prompt_path(table, scheduler.page_size)
            self._prefixes = SharedPrefixes(table.phases, path)
        self._model = ModelShape(layers=int(scheduler.model_config.num_hidden_layers))

    def state(self, memo: object, *, writes: bool) -> State:
        """The state of this pass.

        Args:
            memo: The policy's own.
            writes: What running streams have computed can be copied to the host.
        """
        scheduler, timer = self._scheduler, self._timer
        held = self._body.untouchable
        barred = [self._table.slot(req) for req in held if req in self._table]
        order = self._table.order()
        self._cached.look(order)
        self._paused.look(order)
        streams = self._table.streams(
            barred, writes=writes, cached=self._cached.of(order), prefixes=self._prefixes
        )
        free = self._body.free + self._table.phases.partly_loaded
        promised, pools = self._body.promised, self._body.pools
        total = self._body.total
        device = Tier(kv=Pool(total, free, promised))
        host = Tier(kv=Pool(self._clock.host_total, self._body.host_free()))
        if pools.window_total:
            chunk = min(promised, pools.window.prefill)
            window = Pool(pools.window_total, pools.window_free, chunk)
            device = dataclasses.replace(device, window=window)
            # SGLang makes all pools of the host larger than the device's by the same factor.
            share = pools.window_total / total
            host = dataclasses.replace(host, window=Pool(int(share * self._clock.host_total)))
        if pools.state_total:
            share = pools.state_slots / total
            kept = int(share * self._clock.host_total) // STATES_KEPT
            device = dataclasses.replace(device, state=Pool(pools.state_total))
            host = dataclasses.replace(host, state=Pool(kept))
        return State(
            now=self._clock.now,
            streams=streams,
            memory=Memory(
                device=device,
                host=host,
                page_size=scheduler.page_size,
                max_running=self._rows(),
                ahead=self._body.growth.ahead,
                window=pools.window,
                mirrored=self._body.mirrored,
            ),
            costs=timer.costs(),
            last_prefill_end=timer.last_prefill_end,
            last_prefill_seconds=timer.last_prefill_seconds,
            throughput=timer.throughput(),
            kv_rate=timer.kv_rate(),
            prefill_share=timer.prefill_share(),
            chunk=scheduler.chunked_prefill_size or 0,
            links=self._body.memory.watch.links(self._clock),
            model=self._model,
            memo=memo,
        )

    def _rows(self) -> int:
        """How many streams can run at once: sessions that wait for their next turn have rows."""
        scheduler = self._scheduler
        rows = scheduler.req_to_token_pool.available_size() + self._body.room.running
        most: int = get_parallel().pp_max_micro_batch_size
        return int(min(scheduler.max_running_requests, most, rows))
