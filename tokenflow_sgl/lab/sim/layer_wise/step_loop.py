"""One batch of streams, served step by step: prefills first, then decode steps as they are placed.

First come first served, as vLLM, or those with the shortest answers first (OrbitFlow section 5.4,
SRTF): a request joins when the batch has a row for it and its tokens with those of the batch stay
within a limit. A prefill is a step of its own, and the streams wait
for it. Decode steps take what the fluid model says. KV that a new placement brings to the device is
copied before its first step, which waits for it. What leaves the device costs nothing, as in
OrbitFlow, or is waited for, too, as `--tokenflow-layerwise` does. Paused streams keep their row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tokenflow_sgl.choices import Staging
from tokenflow_sgl.contract import FloatArray, IntArray
from tokenflow_sgl.lab.profiles import DeviceProfile
from tokenflow_sgl.lab.sim.layer_wise.placers import BatchView, MachineOf, Placer
from tokenflow_sgl.lab.traces import TraceRequest
from tokenflow_sgl.placement import Machine
from tokenflow_sgl.placement.deposit import held_tokens


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine is given.

    Attributes:
        rows: Streams of the batch at most.
        batch_tokens: KV tokens that its streams come to hold at most, on device and host.
        device_tokens: KV tokens that fit the device.
        block: Tokens of a block.
        deposit: Seconds between tokens that a token deposit delivers; None: each at once.
        shortest_first: Of the requests that wait the one with the shortest answer joins next.
        staging: How the memory for copies is counted.
        stores: KV that a new placement takes off the device is copied to the host before its first
            step; else it was there before.
    """

    rows: int
    batch_tokens: int
    device_tokens: int
    block: int = 16
    deposit: float | None = None
    shortest_first: bool = False
    staging: Staging = Staging.layer
    stores: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class BatchNewcomer:
    """A request that has come, and the batch that it would join, which has a row for it.

    Attributes:
        slot: Of the request.
        tokens: KV tokens that it comes to hold.
        batch: Slots of the streams.
        held: KV tokens of each now, of shape (streams,).
        whole: Those that it comes to hold, likewise.
    """

    slot: int
    tokens: int
    batch: tuple[int, ...]
    held: IntArray
    whole: IntArray


class Admission(Protocol):
    """Says which requests may join a batch that has a row for them."""

    def joins(self, newcomer: BatchNewcomer) -> bool:
        """Whether it joins now if there are tokens; asked again before each prefill and step."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """What came of requests that were served in one batch: times, pauses and stalls.

    Attributes:
        arrival: Of each request.
        times: When each of its tokens was generated, seconds.
        paused: Times that a stream was paused.
        migrating: Seconds in which steps waited for a new placement, either way of the link.
        decoding: Seconds of decode steps.
    """

    arrival: FloatArray
    times: tuple[FloatArray, ...]
    paused: int
    migrating: float
    decoding: float


def machine_of(profile: DeviceProfile, limits: Limits) -> MachineOf:
    """The machine of each step; its layers share the time of a step evenly."""
    block_bytes = limits.block * profile.kv_bytes_per_token / profile.layers
    memory = limits.device_tokens / limits.block * profile.layers
    bandwidth = profile.host_to_device.bandwidth / block_bytes

    def made(rows: int, tokens: int) -> Machine:
        seconds = profile.decode_seconds(rows, tokens)
        compute = np.full(profile.layers, seconds / profile.layers)
        return Machine(compute, bandwidth, memory, limits.staging)

    return made


def serve_batch(
    requests: Sequence[TraceRequest],
    profile: DeviceProfile,
    limits: Limits,
    placer: Placer,
    admission: Admission | None = None,
) -> Served:
    """Serve requests in their order.

    Args:
        requests: In the order of their arrival, each within the batch's tokens.
        profile: The device's times.
        limits: What it is given.
        placer: Decides where KV lies.
        admission: Says which requests join; None: all for which the batch has a row and tokens.

    Raises:
        ValueError: A request has more tokens than the batch may.
    """
    for index, each in enumerate(requests):
        if each.prompt_tokens + each.output_tokens > limits.batch_tokens:
            raise ValueError(
                f"request {index} has {each.prompt_tokens + each.output_tokens} tokens; allowed "
                f"are {limits.batch_tokens}"
            )
    return _Loop(requests, profile, limits, placer, admission).run()


class _Loop:
    def __init__(
        self,
        requests: Sequence[TraceRequest],
        profile: DeviceProfile,
        limits: Limits,
        placer: Placer,
        admission: Admission | None,
    ) -> None:
        self._requests, self._profile, self._limits = requests, profile, limits
        self._placer, self._machine = placer, machine_of(profile, limits)
        self._admission = admission
        block_bytes = limits.block * profile.kv_bytes_per_token / profile.layers
        self._stores = block_bytes / profile.device_to_host.bandwidth if limits.stores else 0.0
        self._waiting = list(range(len(requests)))
        self._batch: list[int] = []
        self._pausing: set[int] = set()
        self._times: list[list[float]] = [[] for _ in requests]
        self._now = self._migrating = self._decoding = 0.0
        self._steps = self._paused = 0
        self._changed = False

    def run(self) -> Served:
        while self._waiting or self._batch:
            if self._joins():
                self._prefill()
            elif self._batch:
                self._decode()
            else:
                self._now = self._requests[self._waiting[0]].arrival_s
        return Served(
            np.array([request.arrival_s for request in self._requests]),
            tuple(np.array(times) for times in self._times),
            self._paused,
            self._migrating,
            self._decoding,
        )

    def _joins(self) -> bool:
        """Whether the request that joins next has come, and the batch can take it."""
        if not self._waiting or len(self._batch) >= self._limits.rows:
            return False
        first = self._next()
        if self._requests[first].arrival_s > self._now:
            return False
        if self._admission is not None and not self._admission.joins(self._newcomer(first)):
            return False
        held = sum(self._whole(stream) for stream in self._batch)
        return held + self._whole(first) <= self._limits.batch_tokens

    def _newcomer(self, stream: int) -> BatchNewcomer:
        whole = np.array([self._whole(each) for each in self._batch], dtype=np.int64)
        return BatchNewcomer(stream, self._whole(stream), tuple(self._batch), self._held(), whole)

    def _next(self) -> int:
        """The request that joins next; there is one that waits."""
        if not self._limits.shortest_first:
            return self._waiting[0]
        here = [each for each in self._waiting if self._requests[each].arrival_s <= self._now]
        waiting = here or self._waiting[:1]
        return min(waiting, key=lambda each: self._requests[each].output_tokens)

    def _whole(self, stream: int) -> int:
        return self._requests[stream].prompt_tokens + self._requests[stream].output_tokens

    def _prefill(self) -> None:
        stream = self._next()
        self._waiting.remove(stream)
        prompt = self._requests[stream].prompt_tokens
        self._now += self._profile.prefill_seconds(prompt, prompt * prompt / 2.0)
        self._times[stream].append(self._now)
        self._changed = True
        self._batch.append(stream)
        self._leave()

    def _decode(self) -> None:
        tokens = self._held()
        view = BatchView(
            tuple(self._batch),
            tokens,
            self._deposit(),
            self._changed,
            self._steps,
            self._machine,
        )
        placed = self._placer.place(view)
        self._changed = False
        waited = placed.migrating + placed.leaving * self._stores
        self._now += waited
        self._migrating += waited
        rests = {stream for stream, runs in zip(self._batch, placed.runs, strict=True) if not runs}
        self._paused += len(rests - self._pausing)
        self._pausing = rests
        count = min(self._alike(tokens, placed.runs), placed.steps, self._until(placed.seconds))
        ends = self._now + placed.seconds * np.arange(1, count + 1)
        for stream in self._batch:
            if stream not in rests:
                self._times[stream].extend(ends.tolist())
        self._now = float(ends[-1])
        self._decoding += placed.seconds * count
        self._steps += count
        self._leave()

    def _held(self) -> IntArray:
        """KV tokens of each stream: of its last token there is none yet."""
        return np.array(
            [self._requests[s].prompt_tokens + len(self._times[s]) - 1 for s in self._batch],
            dtype=np.int64,
        )

    def _deposit(self) -> IntArray:
        interval = self._limits.deposit
        if interval is None:
            return np.zeros(len(self._batch), dtype=np.int64)
        return np.array(
            [held_tokens(np.array(self._times[s]), interval, self._now) for s in self._batch]
        )

    def _alike(self, tokens: IntArray, runs: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
        """Decode steps until a stream that runs needs a block or ends, one at least."""
        block = self._limits.block
        most = min(
            self._requests[s].output_tokens - len(self._times[s])
            for s, run in zip(self._batch, runs, strict=True)
            if run
        )
        return max(min(most, int((block - tokens[runs] % block).min())), 1)

    def _until(self, seconds: float) -> int:
        """Decode steps until a request comes that the batch may take, one at least."""
        if not self._waiting or len(self._batch) >= self._limits.rows:
            return self._limits.block
        wait = self._requests[self._waiting[0]].arrival_s - self._now
        if wait <= 0.0:
            return self._limits.block
        return max(int(np.ceil(wait / seconds)), 1)

    def _leave(self) -> None:
        """Streams that have all of their tokens are gone."""
        left = [s for s in self._batch if len(self._times[s]) < self._requests[s].output_tokens]
        if len(left) < len(self._batch):
            self._batch, self._changed = left, True
