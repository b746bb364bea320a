"""Which layers' KV of each stream lies on the host in the next step: what a planner sees and says.

A planner is asked before every step, and proposes. What it proposes is cut down to what fits the
device (`fitting`), so that no plan can make a step fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from tokenflow_sgl.contract import BoolArray, IntArray
from tokenflow_sgl.engine.layerwise.link_clock import StepSpeeds
from tokenflow_sgl.placement import Layout

_COLUMNS = "rows", "pages", "read", "running", "fresh", "paused"


@dataclass(frozen=True, slots=True, eq=False)
class StreamsInStep:
    """The streams that hold KV, those of the step first; arrays of shape (streams,).

    Attributes:
        rows: SGLang's number of each: its row in the table of requests.
        pages: Of each in one layer, at the end of the step. What several streams read is counted
            for one of them.
        read: Of these, those that the step reads: of a stream in the step all of them, of another
            one those that one in the step shares with it.
        running: Those that are in the step.
        fresh: Those that are in a step for the first time; a row may have been another stream's.
        paused: Those that will be in no step until they are resumed. No planner is asked about
            them.
        layouts: The layers of each that lie on the host now; new streams have none there.
        layers: Of the model.
        cells: Of the device, each for one page of one layer.
        page: Tokens of a page.
        speeds: Of a decode step, as far as they were measured; None: they were not.
    """

    rows: IntArray
    pages: IntArray
    read: IntArray
    running: BoolArray
    fresh: BoolArray
    paused: BoolArray
    layouts: tuple[Layout, ...]
    layers: int
    cells: int
    page: int = 1
    speeds: StepSpeeds | None = None

    def __post_init__(self) -> None:
        # What a planner says is cut down to what fits by these sizes: they must stay what they are.
        for name in _COLUMNS:
            getattr(self, name).setflags(write=False)

    def of(self, some: BoolArray) -> StreamsInStep:
        """Some of the streams; `some`: of shape (streams,)."""
        columns = {name: getattr(self, name)[some] for name in _COLUMNS}
        layouts = tuple(layout for layout, kept in zip(self.layouts, some, strict=True) if kept)
        return replace(self, **columns, layouts=layouts)


class LayerPlanner(Protocol):
    """Decides which layers' KV of which stream lies on the host in the next steps.

    Ranks that measure other speeds may come to other answers: all are right, but these ranks move
    KV before other steps, and wait for each other. One that has a method `carries(newcomer)` also
    says whether a prompt may join streams whose KV does not fit the device with it
    (`prompt_admission.JoiningPrompt`; true: it may). If a rank says no, the prompt waits until a
    stream has ended.
    """

    def layouts(self, streams: StreamsInStep) -> Sequence[Layout]:
        """The layers of each stream that are to lie on the host, in the order of the streams."""
        ...


def masks_of(layouts: Sequence[Layout], layers: int) -> BoolArray:
    """Whether a layer lies on the host, of shape (layers, streams).

    Raises:
        ValueError: A layout has a layer that the model does not have.
    """
    masks = np.zeros((layers, len(layouts)), dtype=np.bool_)
    for stream, layout in enumerate(layouts):
        if not all(1 <= layer <= layers for layer in layout):
            raise ValueError(f"layout is {layout!r}; allowed are layers from 1 to {layers}")
        masks[[layer - 1 for layer in layout], stream] = True
    return masks


def layout_of(mask: BoolArray) -> Layout:
    """The layout of one stream, from a mask of shape (layers,)."""
    return tuple((np.flatnonzero(mask) + 1).tolist())


def needed_cells(masks: BoolArray, pages: IntArray, read: IntArray) -> int:
    """Cells of the device that a plan takes.

    Args:
        masks: As of `masks_of`.
        pages: Of each stream in one layer, of shape (streams,).
        read: Those of them that the step reads, of shape (streams,): only they have staging cells.
    """
    stays = np.logical_not(masks).sum(axis=0)
    return int((pages * stays + read * masks.any(axis=0)).sum())


def fitting(masks: BoolArray, streams: StreamsInStep) -> BoolArray:
    """A plan that fits the device: streams lie on the host wholly until it does.

    Those that are paused come first, then others that are not in the step, and of these the
    largest. If all lie on the host, the step needs a cell for each page that it reads, and the
    device has as many as there are pages.
    """
    left = needed_cells(masks, streams.pages, streams.read) - streams.cells
    if left <= 0:
        return masks
    masks = masks.copy()
    for stream in np.lexsort((-streams.pages, streams.running, ~streams.paused)):
        one = slice(stream, stream + 1)
        before = needed_cells(masks[:, one], streams.pages[one], streams.read[one])
        masks[:, stream] = True
        after = needed_cells(masks[:, one], streams.pages[one], streams.read[one])
        left -= before - after
        if left <= 0:
            break
    return masks
