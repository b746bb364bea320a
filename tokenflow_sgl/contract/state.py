"""What a policy may look at: one frozen picture of the streams, the memory and the costs.

The body (live engine or simulator) builds a `State`, a policy answers with a `Decision`. A policy
reads no clock and does no I/O: every time and every measurement that it needs is in here, so the
same state gives the same decision on every tensor-parallel rank and in the simulator.

Units: seconds on the body's clock (any origin), tokens, tokens per second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tokenflow_sgl.contract.lengths import FloatArray, IntArray
from tokenflow_sgl.contract.memory import Memory
from tokenflow_sgl.contract.reserve import Growth
from tokenflow_sgl.contract.streams import Streams
from tokenflow_sgl.costs import Links, StepCosts


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the size of a KV copy follows from; 0 where the body does not know.

    Attributes:
        layers: With KV.
        kv_bytes_per_token: Over all layers and this rank's heads.
    """

    layers: int = 0
    kv_bytes_per_token: int = 0


@dataclass(frozen=True)
class State:
    """Everything that one policy pass sees.

    Attributes:
        now: The present.
        streams: All that are waiting, running or paused.
        memory: What they can be kept in.
        costs: Of steps and loads, as learned.
        last_prefill_end, last_prefill_seconds: When the last prefill step ended and how long it
            took; -inf and 0.0 before the first.
        throughput: Output tokens per second over the body's last measuring window; NaN while
            unknown.
        kv_rate: Tokens of context that decoding read per second, lately, while more streams were
            served than the memory holds, prefills not counted; NaN while unknown.
        prefill_share: Share of the time that prefills took then; 0.0 while unknown.
        chunk: Tokens of a prefill step at most; 0 where the body does not know.
        links: Between device and host memory, as measured.
        model: Its shape.
        memo: What the policy's last `Decision` carried; None at first, and after an idle decision
            without one.
    """

    now: float
    streams: Streams
    memory: Memory
    costs: StepCosts
    last_prefill_end: float = -np.inf
    last_prefill_seconds: float = 0.0
    throughput: float = float("nan")
    kv_rate: float = float("nan")
    prefill_share: float = 0.0
    chunk: int = 0
    links: Links = field(default_factory=Links)
    model: ModelShape = field(default_factory=ModelShape)
    memo: object = None

    @cached_property
    def slack(self) -> FloatArray:
        """Seconds until each reader runs out of text, negative while it stalls, shape (n,).

        Text with the client and text that the server holds for it, over the rate. Before the first
        visible token: minus the time waited.
        """
        return self.streams.runs_dry - self.now

    @cached_property
    def growth(self) -> Growth:
        """How the KV of running streams grows."""
        memory = self.memory
        return Growth(memory.page_size, self.costs.tokens_per_step, memory.ahead)

    @cached_property
    def decode_seconds(self) -> float:
        """Length of a decode step of all running streams; 0.0 while unknown."""
        rows = len(self.streams.running_index)
        return self.costs.decode_seconds(rows, float(self.streams.running_context))

    @cached_property
    def prefill_seconds(self) -> FloatArray:
        """Seconds of the prefill of each of `streams.waiting_index`; 0.0 while unknown, shape (w,).

        What is cached is not computed. What of it is on the host is loaded layer by layer while the
        rest is computed, so the longer of both counts.
        """
        return self._prefills(self.costs.prefill_seconds)

    @cached_property
    def prompt_seconds(self) -> FloatArray:
        """Seconds of each of these prefills in steps that prompts share, see `StepCosts`, (w,)."""
        return self._prefills(self.costs.prompt_seconds)

    def _prefills(self, price: Callable[..., FloatArray]) -> FloatArray:
        streams, index = self.streams, self.streams.waiting_index
        computed = streams.uncached.take(index).astype(np.float64)
        if streams.on_host is None:
            return price(computed)
        seconds = price(computed, streams.prompt.take(index) - computed)
        if streams.on_device is None:
            return seconds
        loaded = streams.on_host.take(index) - streams.on_device.take(index)
        if not loaded.any():
            return seconds
        loads = np.where(loaded > 0, self.load_seconds(loaded.astype(np.float64)), 0.0)
        return np.asarray(np.maximum(seconds, loads))

    def prefill_seconds_of(self, index: IntArray) -> FloatArray:
        """`prefill_seconds` of these waiting streams."""
        return self.prefill_seconds.take(self.streams.waiting_index.searchsorted(index))

    def load_seconds(self, tokens: FloatArray) -> FloatArray:
        """Seconds of each load, as steps have waited for loads, or by the link's rate.

        0.0 while neither is known.
        """
        if self.costs.load is None and self.links.load.rate > 0.0:
            return tokens / self.links.load.rate
        return self.costs.load_seconds(tokens)
