"""How long a decode step takes with some KV on the host: the exact fluid model.

Layers run in order, and a layer starts when the one before is done and all of its KV is there. A
stream has one copy under way at most: the one for its next layer on the host. While a layer
computes from a stream's staging buffer, that stream's next copy waits (OrbitFlow section 3.3.1,
condition 1). The link moves `bandwidth` blocks per second, divided by the rule of `Sharing`.

OrbitFlow's Algorithm 1 adds up the whole time of each copy and forgets what arrived during earlier
layers; here progress counts.

Served by earliest deadline, a step is as long as a longest path:

    start[j] = max(start[j - 1] + compute[j - 1],  max over p < j of end[p] + D(p, j) / bandwidth)

where D(p, j) are the blocks of all copies that cannot begin before layer p ends and are due when
layer j starts (p = 0: the step begins). So it depends on the streams only through the sum of the
blocks at each layout, and is convex in these sums: the solver lives on both.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tokenflow_sgl.contract import FloatArray, IntArray
from tokenflow_sgl.placement.layouts import Layout, Layouts
from tokenflow_sgl.placement.machine import Machine, Sharing


@dataclass(frozen=True, slots=True)
class Piece:
    """A time in which the link moves KV of a copy at one rate: seconds, and blocks per second."""

    begin: float
    end: float
    rate: float


@dataclass(frozen=True, slots=True)
class LayerMove:
    """One stream's KV of one layer on its way to the device.

    Attributes:
        stream: Its index in the batch.
        layer: For which it is, from 1 on.
        ready: Seconds from which on it may move: the staging buffer is free.
        pieces: When it moves.
    """

    stream: int
    layer: int
    ready: float
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """When each layer of one decode step computes and waits.

    Attributes:
        start: Seconds at which each layer starts, of shape (layers,).
        stall: Seconds that the device waits before each layer, of shape (layers,).
        seconds: Of the step.
        copies: In the order in which they may begin.
    """

    start: FloatArray
    stall: FloatArray
    seconds: float
    copies: tuple[LayerMove, ...]

    @property
    def stalled(self) -> float:
        """Seconds that the device waits in all."""
        return float(self.stall.sum())


def decode_step(
    sizes: FloatArray,
    layout: IntArray,
    layouts: Layouts,
    machine: Machine,
    sharing: Sharing = Sharing.EARLIEST_DEADLINE,
) -> Timeline:
    """Play one decode step: which layers wait for KV, and for how long.

    Args:
        sizes: Blocks of each stream in one layer, of shape (streams,), > 0.0.
        layout: Its choice, of shape (streams,).
        layouts: The choices, for as many layers as the machine has.
        machine: Times and link; its memory is not looked at.
        sharing: Which copies the link serves; of those with the same deadline one after the
            other.

    Raises:
        ValueError: Layouts and machine differ in their number of layers.
    """
    if layouts.layers != machine.layers:
        raise ValueError(
            f"layouts are for {layouts.layers} layers; allowed here is {machine.layers}"
        )
    chosen = [layouts.choices[choice] for choice in layout]
    link = _Link(sizes, chosen, machine.bandwidth, sharing)
    start = np.zeros(machine.layers)
    stall = np.zeros(machine.layers)
    for index, seconds in enumerate(machine.compute):
        before = link.now
        link.wait(index + 1)
        start[index] = link.now
        stall[index] = link.now - before
        link.move(link.now + float(seconds))
        link.release(index + 1)
    return Timeline(start, stall, link.now, tuple(one.finished() for one in link.copies))


@dataclass(slots=True, eq=False)
class _Moving:
    """A copy under way, with the blocks that are left of it."""

    stream: int
    layer: int
    ready: float
    left: float
    pieces: list[Piece] = field(default_factory=list)

    def add(self, begin: float, end: float, rate: float) -> None:
        """Move on; what goes on as before is one piece with it."""
        if self.pieces and (self.pieces[-1].end, self.pieces[-1].rate) == (begin, rate):
            begin = self.pieces.pop().begin
        self.pieces.append(Piece(begin, end, rate))

    def finished(self) -> LayerMove:
        return LayerMove(self.stream, self.layer, self.ready, tuple(self.pieces))


class _Link:
    """The link in one step, and its clock."""

    def __init__(
        self, sizes: FloatArray, chosen: list[Layout], bandwidth: float, sharing: Sharing
    ) -> None:
        self.sizes = sizes
        self.bandwidth = bandwidth
        self.sharing = sharing
        self.now = 0.0
        self.copies: list[_Moving] = []
        self.moving: list[_Moving] = []
        self.rest = [list(layout) for layout in chosen]  # layers that each stream still copies
        for stream in range(len(chosen)):
            self._begin(stream)

    def wait(self, layer: int) -> None:
        """Until all copies for a layer have arrived."""
        while any(one.layer == layer for one in self.moving):
            self._advance(np.inf)

    def move(self, until: float) -> None:
        """Let the link copy until a time."""
        while self.moving and self.now < until:
            self._advance(until)
        self.now = until

    def release(self, layer: int) -> None:
        """The layer is done: the staging buffers that it read are free."""
        for stream, rest in enumerate(self.rest):
            if rest and rest[0] == layer:
                rest.pop(0)
                self._begin(stream)

    def _begin(self, stream: int) -> None:
        if self.rest[stream]:
            layer = self.rest[stream][0]
            copy = _Moving(stream, layer, self.now, float(self.sizes[stream]))
            self.copies.append(copy)
            self.moving.append(copy)

    def _advance(self, until: float) -> None:
        """To the time given or the next arrival, which comes sooner."""
        served = self.moving
        if self.sharing is Sharing.EARLIEST_DEADLINE:
            served = [min(self.moving, key=lambda one: (one.layer, one.stream))]
        rate = self.bandwidth / len(served)
        least = min(served, key=lambda one: one.left)
        arrival = self.now + least.left / rate
        end = min(arrival, until)
        for one in served:
            if end > self.now:
                one.add(self.now, end, rate)
            one.left -= (end - self.now) * rate
        if arrival <= until:
            least.left = 0.0  # exactly, whatever the rounding
        self.now = end
        self.moving = [one for one in self.moving if one.left > 1e-12 * self.sizes[one.stream]]
