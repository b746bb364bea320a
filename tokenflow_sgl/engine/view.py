"""What a policy sees of SGLang's scheduler."""

from __future__ import annotations

import dataclasses
from typing import Any

from tokenflow_sgl.contract import Memory, ModelShape, Pool, State, Tier
from tokenflow_sgl.costs import StepTimer
from tokenflow_sgl.engine.actuator import EngineActuator
from tokenflow_sgl.engine.kv.link_rates import TransferWatch
from tokenflow_sgl.engine.kv.prompt_match import prompt_match
from tokenflow_sgl.engine.shared_clock import SharedClock
from tokenflow_sgl.lifecycle import CachedPrefixes
from tokenflow_sgl.lifecycle.table import StreamTable


class View:
    """Builds the states of one scheduler.

    Args:
        scheduler: SGLang's.
        table: Of the live streams.
        body: Knows the memory.
        clock: The time that this rank decides by.
        timer: Has learned from the steps.
        links: Measures the copies.
    """

    def __init__(
        self,
        scheduler: Any,
        table: StreamTable[Any],
        body: EngineActuator,
        clock: SharedClock,
        timer: StepTimer,
        links: TransferWatch,
    ) -> None:
        self._scheduler = scheduler
        self._table = table
        self._body = body
        self._clock = clock
        self._timer = timer
        self._links = links
        self._cached = CachedPrefixes(table.phases, prompt_match(scheduler.tree_cache, table))
        self._model = ModelShape(layers=int(scheduler.model_config.num_hidden_layers))

    def state(self, memo: object, *, writes: bool) -> State:
        """The state of this pass.

        Args:
            memo: The policy's own.
            writes: What running streams have computed can be copied to the host.
        """
        scheduler, timer = self._scheduler, self._timer
        chunked = scheduler.chunked_req
        barred = [self._table.slot(chunked)] if chunked in self._table else []
        order = self._table.order()
        self._cached.look(order)
        on_device, on_host = self._cached.of(order)
        streams = self._table.streams(barred, writes=writes)
        free = self._body.free + self._table.phases.partly_loaded
        device = Pool(scheduler.max_total_num_tokens, free, self._body.promised)
        return State(
            now=self._clock.now,
            streams=dataclasses.replace(streams, on_device=on_device, on_host=on_host),
            memory=Memory(
                device=Tier(kv=device),
                host=Tier(kv=Pool(self._clock.host_total)),
                page_size=scheduler.page_size,
                max_running=scheduler.max_running_requests,
            ),
            costs=timer.costs(),
            last_prefill_end=timer.last_prefill_end,
            last_prefill_seconds=timer.last_prefill_seconds,
            throughput=timer.throughput(),
            kv_rate=timer.kv_rate(),
            prefill_share=timer.prefill_share(),
            links=self._links.links(self._clock),
            model=self._model,
            memo=memo,
        )
