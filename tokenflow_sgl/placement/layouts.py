"""Which layers' KV of a stream lies on the host: the choices that a planner has for each stream.

OrbitFlow (PVLDB 19(1), section 3.3.2) offloads every k-th layer and so has D(L) choices for each
stream, floor(L / k) layers for k = 2 to L; 9 for 32 layers. As printed D(L) lacks two: to offload
nothing, which the paper's own Fig. 3 B does, and k = 1, all layers. Here they are there.

Where several k offload the same number of layers, the largest one has the widest gaps and the
latest layers, so that each copy has the longest time to arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tokenflow_sgl.contract import BoolArray

Layout = tuple[int, ...]
"""Layers whose KV lies on the host, ascending, from 1 to the number of layers."""

WIDEST_SHIFTED = 10
"""Distance up to which `half_phases` has a shifted copy: those of 2 to 10 make 18 layouts of the 32
layers that the prototype was measured with; what copies above it would gain was not measured."""


@dataclass(frozen=True, slots=True)
class Layouts:
    """The layouts that each stream can have.

    Attributes:
        layers: Of the model, >= 1.
        choices: The layouts, no two alike.

    Raises:
        ValueError: A layer is outside the model or out of order, or a layout stands twice.
    """

    layers: int
    choices: tuple[Layout, ...]

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError(f"layers is {self.layers!r}; allowed is 1 or more")
        if not self.choices:
            raise ValueError("choices is empty; allowed is one layout or more")
        if len(set(self.choices)) < len(self.choices):
            raise ValueError("choices has a layout twice; allowed is once")
        for layout in self.choices:
            if list(layout) != sorted(set(layout)) or not all(
                1 <= layer <= self.layers for layer in layout
            ):
                raise ValueError(
                    f"layout is {layout!r}; allowed are layers from 1 to {self.layers}, ascending"
                )

    def __len__(self) -> int:
        return len(self.choices)

    def index(self, layout: Layout) -> int:
        """Where a layout stands among the choices.

        Raises:
            ValueError: It is none of them.
        """
        return self.choices.index(layout)

    def offloaded(self) -> BoolArray:
        """Whether a choice has a layer on the host: of shape (choices, layers + 1), column 0 no."""
        found = np.zeros((len(self.choices), self.layers + 1), dtype=np.bool_)
        for choice, layout in enumerate(self.choices):
            found[choice, list(layout)] = True
        return found


@lru_cache(maxsize=64)
def every_kth(layers: int) -> Layouts:
    """Nothing, every k-th layer for each k that changes their number, and all layers.

    OrbitFlow section 3.3.2 with the two layouts that it lacks: 11 for 32 layers.
    """
    return _layouts(layers, (every(layers, distance) for distance in _distances(layers)))


@lru_cache(maxsize=64)
def half_phases(layers: int) -> Layouts:
    """The choices of `every_kth`, and copies of them shifted by half of their distance.

    Streams at the same distance then stage their KV at different layers, which matters where
    staging is counted by its largest layer (`Staging.layer`). 18 for 32 layers.
    """
    shifted = (
        every(layers, distance, distance // 2)
        for distance in _distances(layers)
        if 2 <= distance <= WIDEST_SHIFTED
    )
    return _layouts(layers, (*every_kth(layers).choices, *shifted))


@lru_cache(maxsize=64)
def any_number(layers: int) -> Layouts:
    """Any number of layers, from none to all, spread evenly; the last one is always among them.

    One choice more than there are layers: for batches of one or two streams, where so many still
    are searched in no time. It includes numbers between those of `every_kth`, which are most of
    what OrbitFlow's section 5.4 found to be lost by that restriction.
    """
    spread = (
        tuple(layers * part // number for part in range(1, number + 1))
        for number in range(1, layers + 1)
    )
    return _layouts(layers, spread)


def every(layers: int, distance: int, shift: int = 0) -> Layout:
    """Every k-th layer, from the k-th on, or `shift` layers before these.

    Raises:
        ValueError: `distance` is below 1, or `shift` is not below it.
    """
    if distance < 1:
        raise ValueError(f"distance is {distance!r}; allowed is 1 or more")
    if not 0 <= shift < distance:
        raise ValueError(f"shift is {shift!r}; allowed is 0 to {distance - 1}")
    return tuple(range(distance - shift, layers + 1, distance))


def for_batch(streams: int) -> Callable[[int], Layouts]:
    """The choices that pay for a batch of so many streams, by number of layers."""
    return any_number if streams <= 2 else half_phases


def _distances(layers: int) -> Iterable[int]:
    """The largest k for each number of layers, from wide to dense."""
    numbers: set[int] = set()
    for distance in range(layers, 0, -1):
        if layers // distance not in numbers:
            numbers.add(layers // distance)
            yield distance


def _layouts(layers: int, found: Iterable[Layout]) -> Layouts:
    """Nothing offloaded and these, from few layers to many, each once."""
    once = dict.fromkeys(((), *found))
    return Layouts(layers, tuple(sorted(once, key=len)))
