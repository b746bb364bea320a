"""Asks a planner for each stream's layers, cuts what it says down to what fits, and remembers it.

A planner that fails is replaced by one that does not, from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from tokenflow_sgl.contract import BoolArray, IntArray
from tokenflow_sgl.engine.layerwise.layer_plans import (
    LayerPlanner,
    StreamsInStep,
    fitting,
    layout_of,
    masks_of,
    needed_cells,
)
from tokenflow_sgl.engine.layerwise.link_clock import StepSpeeds
from tokenflow_sgl.engine.layerwise.page_owners import TREE, PageOwners
from tokenflow_sgl.engine.layerwise.prompt_admission import JoiningPrompt

logger = logging.getLogger(__name__)


class PlannedLayers:
    """The layers of the streams of one rank.

    Args:
        planner: Proposes layouts.
        fallback: Does so from then on when the planner fails.
        owners: Of all pages.
        layers: Of the model.
        cells: Of the device, each for one page of one layer.
        page: Tokens of a page.

    Attributes:
        masks: By row, whether a layer of the stream lies on the host, of shape (layers,).
        paused: Rows of streams that will be in no step until they are resumed.
    """

    def __init__(
        self,
        planner: LayerPlanner,
        fallback: LayerPlanner,
        owners: PageOwners,
        *,
        layers: int,
        cells: int,
        page: int,
    ) -> None:
        self._planner, self._fallback = planner, fallback
        self._owners = owners
        self._layers, self._cells, self._page = layers, cells, page
        self.masks: dict[int, BoolArray] = {}
        self.paused: frozenset[int] = frozenset()

    def left(self, rows: Sequence[int]) -> None:
        """The streams of these rows have ended."""
        for row in rows:
            self.masks.pop(row, None)

    def plan(
        self, in_step: list[int], running: IntArray, speeds: StepSpeeds | None
    ) -> tuple[list[int], int]:
        """Say where the layers of all streams are to lie from now on.

        Args:
            in_step: Rows of the step.
            running: Pages that the step reads.
            speeds: Of a decode step; None: not known yet.

        Returns:
            Rows of streams that were in a step before and lie differently now, and the device's
            cells that all streams take.
        """
        layers, old, owners = self._layers, self.masks, self._owners
        none = np.zeros(layers, dtype=np.bool_)
        known = [*dict.fromkeys([*in_step, *old])]
        owned = owners.owned(known)
        rows = [row for n, row in enumerate(known) if n < len(in_step) or owned[n]]
        first = np.arange(len(rows)) < len(in_step)
        streams = StreamsInStep(
            rows=np.array(rows),
            pages=owners.owned(rows) if len(rows) < len(known) else owned,
            read=owners.count(running, rows),
            running=first,
            fresh=np.array([row not in old for row in rows]),
            layouts=tuple(layout_of(old.get(row, none)) for row in rows),
            layers=layers,
            cells=self._cells,
            page=self._page,
            speeds=speeds,
            paused=np.array([row in self.paused for row in rows]) & ~first,
        )
        masks = masks_of(streams.layouts, layers)  # the paused stay while they are in no one's way
        masks[:, ~streams.paused] = self._proposed(streams.of(~streams.paused))
        masks = fitting(masks, streams)
        self.masks = dict(zip(rows, masks.T, strict=True))
        changed = [row for row in rows if row in old and (old[row] != self.masks[row]).any()]
        return changed, needed_cells(masks, streams.pages, streams.read)

    def wanted(self, pages: IntArray) -> BoolArray:
        """Whether these pages are to lie on the host, of shape (layers, n); all True: the tree's.

        pages: Of shape (n,), each with an owner.
        """
        if not pages.size:
            return np.zeros((self._layers, 0), dtype=np.bool_)
        away = np.ones(self._layers, dtype=np.bool_)
        rows, of = np.unique(self._owners.row[pages], return_inverse=True)
        masks = [away if row == TREE else self.masks[row] for row in rows.tolist()]
        found: BoolArray = np.stack(masks, axis=1)[:, of]
        return found

    def carries(self, joined: IntArray, pages: int, speeds: StepSpeeds | None) -> bool:
        """Whether a prompt may join these streams, whose KV does not fit with it.

        The planner says; where it does not, or nothing was measured yet, it may.

        Args:
            joined: Pages of each in one layer, with what its answer is expected to take; of shape
                (streams,), at least two.
            pages: Of the prompt, likewise.
            speeds: Of a decode step; None: not known yet.
        """
        says = getattr(self._planner, "carries", None)
        if says is None or speeds is None or not speeds.layer:
            return True
        newcomer = JoiningPrompt(pages, joined, self._layers, self._cells, speeds)
        try:
            return bool(says(newcomer))
        except Exception:
            self._fell_back()
            return True

    def _proposed(self, streams: StreamsInStep) -> BoolArray:
        try:
            said = self._planner.layouts(streams)
            if len(said) != streams.rows.size:
                raise ValueError(f"{len(said)} layouts for {streams.rows.size} streams")
            return masks_of(said, streams.layers)
        except Exception:
            if self._planner is self._fallback:
                raise
            self._fell_back()
            return self._proposed(streams)

    def _fell_back(self) -> None:
        """The planner has just raised something."""
        logger.exception("tokenflow: the planner of layers failed; the shipped one goes on")
        self._planner = self._fallback
