"""What a policy sees of the simulated engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
        self._version = -1
        self._settled: dict[str, Any] = {}

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
            memory=self.memory,
            costs=timer.costs(),
            last_prefill_end=timer.last_prefill_end,
            last_prefill_seconds=timer.last_prefill_seconds,
            throughput=timer.throughput(),
            kv_rate=timer.kv_rate(),
            prefill_share=timer.prefill_share(),
            chunk=core.options.chunked_prefill_size,
            links=core.device.links(now),
            model=ModelShape(core.device.profile.layers, core.device.profile.kv_bytes_per_token),
            memo=memo,
        )

    @property
    def memory(self) -> Memory:
        """What the policy sees of it."""
        return _memory_of(self._core, self._body)

    def pass_by(self, present: IntArray) -> None:
        """A pass whose state no policy looks at, in which no stream waits or is paused.

        All that is learned or looked at by the number of passes goes on as with `state`.
        """
        streams = self._core.streams
        self._timer.costs()
        self._cached.pass_by()
        generated = streams.known[present]
        self._lengths.lengths(streams.kind[present], generated)
        if self._core.shares:
            self._prefixes.of(present, generated > 0)

    def _streams(self, present: IntArray) -> Streams:
        streams, phases = self._core.streams, self._core.streams.phases
        settled = self._settled_of(present)
        running = settled["standing"].running_index
        # Of the step under way no result is there.
        generated, limit, kind = streams.known[present], settled["limit"], settled["kind"]
        visible = np.maximum(generated - settled["reasoning"], 0)
        can = np.zeros(len(present), dtype=np.bool_)
        can[running] = worth_preempting(generated[running], limit[running])
        if self._core.chunked is not None:
            can &= present != self._core.chunked
        unwritten = np.zeros(len(present), dtype=np.int64)
        computed = settled["prompt"] + generated - 1
        unwritten[running] = self._core.memory.unwritten(present[running], computed[running])
        on_device, on_host = self._cached.of(present)
        return Streams(
            **{name: column for name, column in settled.items() if name != "reasoning"},
            next_due=streams.due[present],
            generated=generated,
            lengths=self._lengths.lengths(kind, generated),
            first_text=streams.first_text[present],
            visible=visible,
            thinking=(settled["reasoning"] > 0) & (visible == 0),
            admitted=phases.admitted[present],
            preemptible=can,
            ready=phases.ready[present],
            unwritten=unwritten,
            to_load=phases.to_load(present),
            on_device=on_device,
            on_host=on_host,
            shared=self._prefixes.of(present, generated > 0) if self._core.shares else None,
            beginnings=self._prefixes.beginnings,
        )

    def _settled_of(self, present: IntArray) -> dict[str, Any]:
        """What lasts until a stream arrives, leaves or changes its phase: found once until then."""
        streams, phases = self._core.streams, self._core.streams.phases
        if self._version == phases.version and np.array_equal(
            self._settled["standing"].slot, present
        ):
            return self._settled
        columns: dict[str, Any] = {
            name: getattr(streams, name)[present]
            for name in ("arrival", "rate", "prompt", "limit", "kind", "reasoning")
        }
        objectives: dict[str, Any] = {
            name: unless(column[present], NEUTRAL[name])
            for name, column in (
                ("ttft_slo", streams.ttft_slo),
                ("tbt_slo", streams.tbt_slo),
                ("tpot_slo", streams.tpot_slo),
                ("deadline", streams.deadline),
                ("weight", streams.weight),
                ("priority", streams.claim),
                ("tolerance", streams.tolerance),
            )
        }
        if streams.tenant is not None:
            columns["tenant"] = streams.tenant[present]
            columns["tenant_weight"] = unless(streams.tenant_weight[present], 1.0)
        self._version = phases.version
        self._settled = {
            "standing": Standing(present, phases.phase[present], phases.since[present]),
            "streaming": np.ones(len(present), dtype=np.bool_),
            **columns,
            **objectives,
        }
        return self._settled


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
