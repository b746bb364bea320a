"""The verbs that a body offers to the lifecycle, and what only the body knows or can refuse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tokenflow_sgl.contract import Preempt, Restore, Write
from tokenflow_sgl.offload import DeviceRoom

Action = Preempt | Write | Restore


@dataclass(frozen=True, slots=True)
class Missing:
    """What a paused stream's KV takes to be on the device.

    Attributes:
        tokens: To copy from the host; 0: there is no copy to wait for, because the KV is on the
            device or nowhere.
        evictable: Tokens that are on the device already and could be evicted until then.
    """

    tokens: int = 0
    evictable: int = 0


class Actuator(Protocol):
    """A body: the live engine, or the simulator.

    `lifecycle.apply` calls the verbs with slots that are in the right phase, and moves the streams
    between their phases. A body moves streams by itself only when something lands or ends: a
    drained stream is paused, a chunk of a prefetch has landed, an admitted stream runs.
    """

    def accepts(self, action: Action) -> bool:
        """Whether the body can carry this action out now, by what only the body knows.

        For example a stream in the middle of its prefill is not preempted, and an aborted one is
        not prefetched.
        """
        ...

    def write(self, writes: Sequence[Write]) -> int:
        """Start to copy KV of running streams to the host; returns the tokens that are copied."""
        ...

    def preempt(self, slots: Sequence[int]) -> None:
        """Take these streams, which are draining now, out of the batch.

        Each is paused as soon as no result that it takes part in is in flight; that may be at once.
        """
        ...

    @property
    def room(self) -> DeviceRoom:
        """The device's memory for KV as it is now; what is loaded in part is not free."""
        ...

    def missing(self, slot: int) -> Missing:
        """What is still to be loaded of a stream that is paused, or loaded in part."""
        ...

    def load(self, slot: int, tokens: int) -> int:
        """Start to copy the next `tokens` of a stream to the device, where they fit.

        What was loaded stays on the device until all of it has landed, or it is given up.

        Returns:
            The tokens that are copied; 0: none can be, so the stream is resumed without: for one,
            a stream that runs has the same tokens.
        """
        ...

    def give_up(self, slot: int) -> None:
        """What was loaded of this stream may be evicted again."""
        ...

    def offer(
        self, slots: Sequence[int] | None, recompute: frozenset[int], hidden: frozenset[int]
    ) -> None:
        """Let the engine's admission see these streams, in their order, and no others.

        Args:
            slots: Waiting or paused streams; None: all of them, the paused ones first, each in
                order of arrival.
            recompute: Those whose KV on the host is not loaded but computed.
            hidden: Streams that are not offered, named in `slots` or not.
        """
        ...

    @property
    def busy(self) -> bool:
        """Whether a stream runs, or is about to without being offered."""
        ...

    @property
    def prefetching(self) -> bool:
        """Whether the transfer slot for prefetches is taken."""
        ...

    def copying(self, slot: int) -> bool:
        """Whether a chunk of this stream is on its way to the device."""
        ...
