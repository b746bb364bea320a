"""What a plan is made for: times of layers, the link, and the memory with its staging rule."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace

import numpy as np

from tokenflow_sgl.choices import Staging
from tokenflow_sgl.contract import FloatArray, IntArray
from tokenflow_sgl.placement.layouts import Layouts


class Sharing(enum.Enum):
    """Which copies the link serves."""

    EARLIEST_DEADLINE = "earliest-deadline"
    """The one whose layer comes first: no order ends a step sooner. With it OrbitFlow's Fig. 3
    comes out as printed."""
    EQUAL = "equal"
    """All at the same rate (OrbitFlow Algorithm 1)."""


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """A device with its link, as one decode step of one batch sees it.

    A block is the KV of a fixed number of tokens in one layer.

    Attributes:
        compute: Seconds of each layer, of shape (layers,), >= 0.0.
        bandwidth: Blocks per second from the host, > 0.0.
        memory: Blocks on the device, over all layers, >= 0.0.
        staging: How staging is counted.

    Raises:
        ValueError: A value is outside its range.
    """

    compute: FloatArray
    bandwidth: float
    memory: float
    staging: Staging = Staging.layer

    def __post_init__(self) -> None:
        if self.compute.ndim != 1 or not self.compute.size:
            raise ValueError(f"compute has shape {self.compute.shape}; allowed is (layers,)")
        if not (np.isfinite(self.compute).all() and (self.compute >= 0.0).all()):
            raise ValueError("compute has a negative or infinite value; allowed is 0 or more")
        if not (math.isfinite(self.bandwidth) and self.bandwidth > 0.0):
            raise ValueError(f"bandwidth is {self.bandwidth!r}; allowed is above 0")
        if not (math.isfinite(self.memory) and self.memory >= 0.0):
            raise ValueError(f"memory is {self.memory!r}; allowed is 0 or more")

    @property
    def layers(self) -> int:
        """Number of the model's layers."""
        return int(self.compute.size)

    @property
    def computing(self) -> float:
        """Seconds of all layers: no step is shorter."""
        return float(self.compute.sum())

    def sharded(self, ranks: int) -> Machine:
        """The machine of a tensor-parallel group, each rank with a link of its own.

        Blocks stay whole: a rank has its heads' share of each, so that all ranks together hold and
        move `ranks` times as many as one. The times of the layers are those of the group.

        Raises:
            ValueError: `ranks` is below 1.
        """
        if ranks < 1:
            raise ValueError(f"ranks is {ranks!r}; allowed is 1 or more")
        return replace(self, bandwidth=self.bandwidth * ranks, memory=self.memory * ranks)


def resident_blocks(sizes: FloatArray, layout: IntArray, layouts: Layouts) -> float:
    """Blocks that stay on the device for good.

    Args:
        sizes: Blocks of each stream in one layer, of shape (streams,).
        layout: Its choice, of shape (streams,).
        layouts: The choices.
    """
    numbers = np.array([len(choice) for choice in layouts.choices])
    return float((sizes * (layouts.layers - numbers[layout])).sum())


def staging_blocks(
    sizes: FloatArray, layout: IntArray, layouts: Layouts, staging: Staging
) -> float:
    """Blocks of the staging buffers, by the rule; arguments as of `resident_blocks`."""
    offloaded = layouts.offloaded()[layout]
    if staging is Staging.stream:
        return float(sizes[offloaded.any(axis=1)].sum())
    return float((sizes[:, None] * offloaded).sum(axis=0).max(initial=0.0))


def needed_blocks(sizes: FloatArray, layout: IntArray, layouts: Layouts, machine: Machine) -> float:
    """Blocks on the device, staging included; arguments as of `resident_blocks`."""
    resident = resident_blocks(sizes, layout, layouts)
    return resident + staging_blocks(sizes, layout, layouts, machine.staging)


def fits(sizes: FloatArray, layout: IntArray, layouts: Layouts, machine: Machine) -> bool:
    """Whether a placement fits the memory; arguments as of `resident_blocks`."""
    needed = needed_blocks(sizes, layout, layouts, machine)
    return needed <= machine.memory * (1.0 + 1e-12)  # but for rounding
