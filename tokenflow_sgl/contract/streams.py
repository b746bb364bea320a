"""The streams that a policy decides about, as parallel numpy arrays.

Units: seconds on the body's clock (any origin), tokens, tokens per second.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tokenflow_sgl.contract.beginnings import Beginnings
from tokenflow_sgl.contract.lengths import CERTAIN, FloatArray, IntArray, Lengths
from tokenflow_sgl.contract.standing import BoolArray, PhaseArray, Standing, sealed

_NONE: IntArray = sealed(np.zeros(0, dtype=np.int64))


@dataclass(frozen=True)
class Streams:
    """All tracked streams as parallel arrays of one length n, in arrival order.

    Attributes:
        standing: Who they are (`slot`), and where they stand (`phase`, `since`).
        arrival: When the request arrived.
        rate: Tokens per second that its reader consumes.
        next_due: When its reader has read all that the client was sent. Before the first visible
            token: the arrival. Infinite while the reader rests.
        prompt: Prompt tokens.
        generated: Output tokens computed so far, sent to the client or not: with the prompt, the
            stream's context.
        limit: Output tokens that the client allows.
        kind: Which of `lengths` its answer follows.
        admitted: Member of the working set (the policy promised to serve it).
        preemptible: The body can preempt it now.
        streaming: A reader follows its text as it is generated. Otherwise the answer is sent as a
            whole at its end: there is no reader to stall, but a pause delays the answer. Its `rate`
            is then the highest.
        ready: A paused stream that can be resumed at once: its KV was prefetched since it was
            paused, or the body found that it cannot be loaded beside the steps.
        unwritten: Of a running stream, tokens of computed KV that a `Write` could copy to the host.
        to_load: Of a loading stream, tokens for which no copy has begun, because memory for them is
            missing: it can be given up and its memory used for others. 0 for all other streams.
            None: no stream is loaded in part.
        visible: Of the output tokens so far, those that are not reasoning; None: all of them.
        thinking: Its answer begins with reasoning that its reader does not see, and nothing behind
            that has been generated yet (a stream without a token counts, too, if it is known that
            it will think). It has no buffer: like a newcomer it waits for its first text. None:
            no stream thinks.
        resting: Its reader has looked away, and reads nothing until it is back: nothing is due.
            Policies do not see such streams (see `lifecycle.resting`). None: no reader rests.
        held: Output tokens that the server keeps back for the client (token deposit); None: none.
        on_device, on_host: Leading tokens of each waiting stream's prompt that are cached: on the
            device; or on the device and behind that on the host. As of the body's last look, 0
            before it and for streams that do not wait. None: the body does not keep count.
        shared: Leading tokens of its context that other streams, which run, hold on the device: to
            start or resume it takes no memory for these, and to preempt it frees none. None: none
            shares any.
        beginnings: What they begin with in common, whether it is held or not; None: nothing.
        ttft_slo, tbt_slo: Objectives in seconds, NaN where a request has none; None: none has any.
        tpot_slo: Objective of the mean time per token after the first, likewise.
        deadline: Seconds from its arrival by which the whole answer is wanted, likewise.
        first_text: When its first visible token was sent, NaN before; None: the body does not say.
        weight: Its claim relative to others where not all can be served; None: all alike.
        priority: Larger is more urgent, a whole number; None: none has any.
        tolerance: Seconds of waiting for text, for the first as for more, that its reader does not
            mind; None: none for any.
        tenant: Number of who asks, 0 or more; None: tenants are not told apart.
        tenant_weight: Of each stream's tenant, above 0: its claim to a share of the server relative
            to other tenants; None: all alike.
        lengths: How long answers get, as far as it is known.
    """

    standing: Standing
    arrival: FloatArray
    rate: FloatArray
    next_due: FloatArray
    prompt: IntArray
    generated: IntArray
    limit: IntArray
    kind: IntArray
    admitted: BoolArray
    preemptible: BoolArray
    streaming: BoolArray
    ready: BoolArray
    unwritten: IntArray
    to_load: IntArray | None = None
    visible: IntArray | None = None
    thinking: BoolArray | None = None
    resting: BoolArray | None = None
    held: IntArray | None = None
    on_device: IntArray | None = None
    on_host: IntArray | None = None
    shared: IntArray | None = None
    beginnings: Beginnings | None = None
    ttft_slo: FloatArray | None = None
    tbt_slo: FloatArray | None = None
    tpot_slo: FloatArray | None = None
    deadline: FloatArray | None = None
    first_text: FloatArray | None = None
    weight: FloatArray | None = None
    tolerance: FloatArray | None = None
    priority: FloatArray | None = None
    tenant: IntArray | None = None
    tenant_weight: FloatArray | None = None
    lengths: Lengths = CERTAIN

    def __len__(self) -> int:
        return len(self.standing)

    def among(self, index: IntArray) -> Streams:
        """Only the streams at `index`, in its order."""
        columns = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        chosen: dict[str, Any] = {
            name: column[index]
            for name, column in columns.items()
            if isinstance(column, np.ndarray)
        }
        if self.beginnings is not None:
            chosen["beginnings"] = self.beginnings.among(index)
        return dataclasses.replace(self, standing=self.standing.among(index), **chosen)

    @property
    def slot(self) -> IntArray:
        """Identity of each stream, stable over its life (the body's index), shape (n,)."""
        return self.standing.slot

    @property
    def phase(self) -> PhaseArray:
        """A `Phase` value of each, shape (n,)."""
        return self.standing.phase

    @property
    def since(self) -> FloatArray:
        """When each entered its phase, shape (n,)."""
        return self.standing.since

    @property
    def waiting(self) -> BoolArray:
        """Which streams are `Phase.WAITING`, shape (n,)."""
        return self.standing.waiting

    @property
    def running(self) -> BoolArray:
        """Which streams are `Phase.RUNNING`, shape (n,)."""
        return self.standing.running

    @property
    def draining(self) -> BoolArray:
        """Which streams are `Phase.DRAINING`, shape (n,)."""
        return self.standing.draining

    @property
    def paused(self) -> BoolArray:
        """Which streams are `Phase.PAUSED`, shape (n,)."""
        return self.standing.paused

    @property
    def loading(self) -> BoolArray:
        """Which streams are `Phase.LOADING`, shape (n,)."""
        return self.standing.loading

    @property
    def paused_or_loading(self) -> BoolArray:
        """Which streams have started and are in no batch, shape (n,)."""
        return self.standing.paused_or_loading

    @property
    def waiting_index(self) -> IntArray:
        """Indices of the waiting streams, shape (w,)."""
        return self.standing.waiting_index

    @property
    def running_index(self) -> IntArray:
        """Indices of the running streams, shape (r,)."""
        return self.standing.running_index

    def find(self, slots: Sequence[int] | IntArray) -> IntArray:
        """Index of each of these slots in the arrays, -1 where it is not here; (len(slots),)."""
        return self.standing.find(slots)

    # What every part of a policy asks for is computed once per state, and sealed.

    @cached_property
    def read_index(self) -> IntArray:
        """Indices of the running streams whose readers read; those that think have none, (r,).

        A newcomer whose prefill is under way counts: its reader waits. While one is, prefill steps
        are short, so that what others have unread is not spent on it.
        """
        running = self.running_index
        read = self.streaming.take(running)
        if self.thinking is not None:
            read &= ~(self.thinking.take(running) & (self.generated.take(running) > 0))
        return sealed(running[read])

    @cached_property
    def partly_loaded(self) -> BoolArray:
        """Which streams are `Phase.LOADING` and wait for memory for the rest, shape (n,)."""
        if self.to_load is None:
            return sealed(np.zeros(len(self), dtype=np.bool_))
        return sealed(self.loading & (self.to_load > 0))

    @property
    def seen(self) -> IntArray:
        """Output tokens so far that are for the reader, sent or not, shape (n,)."""
        return self.generated if self.visible is None else self.visible

    @property
    def thinks(self) -> BoolArray:
        """Which streams are `thinking`, shape (n,)."""
        if self.thinking is None:
            return sealed(np.zeros(len(self), dtype=np.bool_))
        return self.thinking

    @property
    def textless(self) -> BoolArray:
        """Which streams wait for their first visible text: newcomers and those that think."""
        return self.waiting if self.thinking is None else sealed(self.waiting | self.thinking)

    @cached_property
    def begun_thinking(self) -> IntArray:
        """Indices of the streams that think and have been prefilled, shape (t,)."""
        if self.thinking is None:
            return _NONE
        return sealed(np.nonzero(self.thinking & (self.generated > 0))[0])

    @cached_property
    def member(self) -> BoolArray:
        """Which streams are in the working set: admitted, or started; shape (n,)."""
        return sealed(~self.waiting | self.admitted)

    @cached_property
    def running_context(self) -> int:
        """Tokens of context that all running streams hold together."""
        return int(self.length.take(self.running_index).sum())

    @cached_property
    def length(self) -> IntArray:
        """Tokens of context: prompt and output so far, shape (n,)."""
        return sealed(self.prompt + self.generated)

    @cached_property
    def own(self) -> IntArray:
        """Tokens of context that each takes memory for by itself, shape (n,)."""
        return self.length if self.shared is None else sealed(self.length - self.shared)

    @cached_property
    def holding(self) -> BoolArray:
        """Which streams hold KV that others may share, shape (n,)."""
        return sealed((self.generated > 0) & (self.running | self.draining))

    @cached_property
    def uncached(self) -> IntArray:
        """Prompt tokens that a prefill computes, not loads: at least the last one, shape (n,)."""
        if self.on_host is None:
            return self.prompt
        return sealed(np.maximum(self.prompt - self.on_host, 1))

    @cached_property
    def left(self) -> FloatArray:
        """Expected output tokens still to come, at least 1, shape (n,)."""
        return self.lengths.typical.left(self.kind, self.generated, self.limit)

    @cached_property
    def expected(self) -> FloatArray:
        """Expected total output tokens, at least generated + 1, shape (n,)."""
        return self.generated + self.left

    def expected_of(self, index: IntArray) -> FloatArray:
        """`expected` of the streams at `index` alone: the others cost no time."""
        generated = self.generated[index]
        left = self.lengths.typical.left(self.kind[index], generated, self.limit[index])
        return generated + left

    def read_length_of(self, index: IntArray) -> FloatArray:
        """Expected output tokens for the readers of the streams at `index`.

        How long a stream will go on thinking is unknown: its whole rest counts.
        """
        expected = self.expected_of(index)
        if self.visible is None:
            return expected
        return expected - (self.generated - self.visible)[index]

    @cached_property
    def runs_dry(self) -> FloatArray:
        """When each reader has no more text if nothing is computed: client's and held, shape (n,).

        The one definition of a stream's buffer: slack is `runs_dry - now` (see `State.slack`).
        """
        return self.next_due if self.held is None else self.next_due + self.held / self.rate
