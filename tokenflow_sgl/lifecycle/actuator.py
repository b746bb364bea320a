"""The verbs that a body offers to the lifecycle: five deeds, and what only the body can refuse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tokenflow_sgl.contract import Place, Preempt, Restore, Write

Action = Preempt | Write | Restore | Place


@dataclass(frozen=True, slots=True)
class Prefetch:
    """What came of the wish to load a paused stream's KV beside the steps.

    Attributes:
        tokens: That are being copied; 0: none, see `needed`.
        needed: There is no memory or no transfer slot for it now. Otherwise, without tokens, there
            is no copy to wait for: the KV is on the device or nowhere, or is shared with a stream
            that runs, and the stream can be resumed at once.
    """

    tokens: int = 0
    needed: bool = False


class Actuator(Protocol):
    """A body: the live engine, or the simulator.

    `lifecycle.apply` calls the verbs with slots that are in the right phase, and moves the streams
    between their phases. A body moves streams by itself only when something lands or ends: a
    drained stream is paused, a prefetch has arrived, an admitted stream runs.
    """

    def accepts(self, action: Action) -> bool:
        """Whether the body can carry this action out now, by what only the body knows.

        For example a stream in the middle of its prefill is not preempted, an aborted one is not
        prefetched, and a body without layer-wise KV places nothing.
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

    def place(self, places: Sequence[Place]) -> None:
        """Change which layers of these streams' KV are on the device."""
        ...

    def restore(self, restore: Restore) -> Prefetch:
        """Start to load a paused stream's KV beside the steps."""
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
