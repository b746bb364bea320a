"""What a policy sees of the simulated engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tokenflow_sgl.contract import (
    IntArray,
    Memory,
    ModelShape,
    Pool,
    Standing,
    State,
    Streams,
    Tier,
    Window,
)
from tokenflow_sgl.contract.lengths import LengthPredictor
from tokenflow_sgl.costs import StepTimer
from tokenflow_sgl.lab.sim.actuator import SimActuator
from tokenflow_sgl.lab.sim.core import SimulatedCore
from tokenflow_sgl.lifecycle.cached_prefixes import CachedPrefixes
from tokenflow_sgl.lifecycle.columns import NEUTRAL, unless
from tokenflow_sgl.lifecycle.phases import worth_preempting
from tokenflow_sgl.lifecycle.shared_prefixes import SharedPrefixes


class SimulatedStates:
    """Builds the states that a policy sees of one simulated engine.

    Args:
        core: The engine's.
        body: What is paused or draining.
        timer: Has learned from the steps.
        lengths: Of answers, as the server knows them.
        cached: Tells how much of the waiting prompts is cached.
        prefixes: Tells what the streams share.
    """

    def __init__(
        self,
        core: SimulatedCore,
        body: SimActuator,
        timer: StepTimer,
        lengths: LengthPredictor,
        cached: CachedPrefixes,
        prefixes: SharedPrefixes,
    ) -> None:
        self._core, self._body, self._timer = core, body, timer
        self._lengths, self._cached, self._prefixes = lengths, cached, prefixes

    def state(self, present: IntArray, memo: object, now: float) -> State:
        """What the policy sees of the engine at `now`.

        Args:
            present: Streams that are here, in order of arrival.
            memo: The policy's own.
            now: Seconds on the trace's clock.
        """
        core, timer = self._core, self._timer
        return State(
            now=now,
            streams=self._streams(present),
            memory=_memory_of(core, self._body),
            costs=timer.costs(),
            last_prefill_end=timer.last_prefill_end,
            last_prefill_seconds=timer.last_prefill_seconds,
            throughput=timer.throughput(),
            kv_rate=timer.kv_rate(),
            prefill_share=timer.prefill_share(),
            links=core.device.links(now),
            model=ModelShape(core.device.profile.layers, core.device.profile.kv_bytes_per_token),
            memo=memo,
        )

    def _streams(self, present: IntArray) -> Streams:
        streams, phases = self._core.streams, self._core.streams.phases
        standing = Standing(present, phases.phase[present], phases.since[present])
        running = standing.running_index
        # Of the step under way no result is there.
        generated, limit = streams.known[present], streams.limit[present]
        visible, kind = streams.visible(present), streams.kind[present]
        can = np.zeros(len(present), dtype=np.bool_)
        can[running] = worth_preempting(generated[running], limit[running])
        if self._core.chunked is not None:
            can &= present != self._core.chunked
        unwritten = np.zeros(len(present), dtype=np.int64)
        computed = streams.prompt[present] + generated - 1
        unwritten[running] = self._core.memory.unwritten(present[running], computed[running])
        on_device, on_host = self._cached.of(present)
        return Streams(
            standing=standing,
            arrival=streams.arrival[present],
            rate=streams.rate[present],
            next_due=streams.due[present],
            prompt=streams.prompt[present],
            generated=generated,
            limit=limit,
            kind=kind,
            lengths=self._lengths.lengths(kind, generated),
            first_text=streams.first_text[present],
            ttft_slo=unless(streams.ttft_slo[present], NEUTRAL["ttft_slo"]),
            tbt_slo=unless(streams.tbt_slo[present], NEUTRAL["tbt_slo"]),
            tpot_slo=unless(streams.tpot_slo[present], NEUTRAL["tpot_slo"]),
            weight=unless(streams.weight[present], NEUTRAL["weight"]),
            priority=unless(streams.claim[present], NEUTRAL["priority"]),
            tolerance=unless(streams.tolerance[present], NEUTRAL["tolerance"]),
            visible=visible,
            thinking=(streams.reasoning[present] > 0) & (visible == 0),
            admitted=phases.admitted[present],
            preemptible=can,
            streaming=np.ones(len(present), dtype=np.bool_),
            ready=phases.ready[present],
            unwritten=unwritten,
            to_load=phases.to_load(present),
            on_device=on_device,
            on_host=on_host,
            shared=self._prefixes.of(present, generated > 0),
        )


def _memory_of(core: SimulatedCore, body: SimActuator) -> Memory:
    memory, windows = core.memory, core.windows
    free = memory.free + core.streams.phases.partly_loaded
    device = Tier(kv=Pool(memory.device, free, body.promised))
    host = Tier(kv=Pool(memory.host.size, memory.host.size - memory.host.used))
    need = Window()
    if windows is not None:
        need = windows.need
        draining = int(windows.held(core.length(np.array(body.draining, dtype=np.int64))))
        promised = min(body.promised, need.prefill)
        left = Pool(windows.total, core.window_free - draining, promised)
        share = windows.total / memory.device
        device = replace(device, window=left)
        host = replace(host, window=Pool(int(share * memory.host.size)))
    return Memory(
        device=device,
        host=host,
        page_size=core.options.page_size,
        max_running=core.options.max_running_requests,
        window=need,
        ahead=core.options.ahead,
        mirrored=core.options.hicache_write_policy != "write_back",
    )
