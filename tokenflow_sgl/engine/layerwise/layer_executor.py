"""Carries plans out: before a step KV moves, in it each layer waits for what it reads.

One step: the staging cells of the last one are free. The streams that hold KV get their layouts;
what leaves the device is copied first, since its cells take what comes. Then each layer waits for
its KV on the host to be in the staging cells, computes, and the new tokens of what lies on the host
follow to the host. Between steps no copy into a staging cell is under way, so that pages may be
freed, and plans may change, at any time.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.contract import BoolArray, IntArray
from tokenflow_sgl.engine.layerwise.cells import NONE
from tokenflow_sgl.engine.layerwise.layer_copies import LayerCopies, Ticket
from tokenflow_sgl.engine.layerwise.layer_plans import (
    LayerPlanner,
    StreamsInStep,
    fitting,
    layout_of,
    masks_of,
)
from tokenflow_sgl.engine.layerwise.layer_speeds import LayerSpeeds, StepMoments
from tokenflow_sgl.engine.layerwise.link_clock import LinkClock
from tokenflow_sgl.engine.layerwise.page_places import PagePlaces
from tokenflow_sgl.engine.layerwise.prompt_admission import Newcomer
from tokenflow_sgl.engine.layerwise.staging_queue import Fetch, StagingQueue, groups

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class StepRow:
    """A stream of a step.

    Attributes:
        row: Its row in SGLang's table of requests.
        places: Where SGLang put its tokens, those of this step last: page * page size + place.
        new: Tokens that this step computes, >= 1.
    """

    row: int
    places: IntArray
    new: int


class LayerExecutor:
    """Of one rank.

    Args:
        places: Of all pages.
        page_size: Tokens of a page.
        planner: Proposes layouts.
        fallback: Does so from then on when the planner fails.
        copies: Of the memory that `places` numbers.
        audits: Look before every step, and when pages are taken back, whether each cell is in one
            hand: for debugging.

    Attributes:
        switches: Streams whose layout has changed so far.
        fetched: Pages of one layer that were copied into staging cells so far.
        paused: Rows of streams that will be in no step until they are resumed.
    """

    def __init__(
        self,
        places: PagePlaces,
        page_size: int,
        planner: LayerPlanner,
        fallback: LayerPlanner,
        copies: LayerCopies,
        *,
        audits: bool = False,
    ) -> None:
        self.places = places
        self._size = page_size
        self._planner, self._fallback = planner, fallback
        self._copies = copies
        self._audits = audits
        self._owner = np.full(places.alive.size, NONE, dtype=np.int64)  # row of each live page
        self._masks: dict[int, BoolArray] = {}
        self._new = np.zeros(0, dtype=np.int64)  # where the tokens of this step are put
        self._queue = StagingQueue(())
        self._clock = LinkClock(None)
        self._speeds = LayerSpeeds(places.layers, copies)
        self._measured: StepMoments | None = None  # of the last step, if all of its streams decode
        self._landing: dict[int, Ticket] = {}  # the last copy for each layer
        self._stored: Ticket | None = None  # the last copy to the host
        self._layer = 0
        self.switches = 0
        self.fetched = 0
        self.paused: frozenset[int] = frozenset()

    def is_resident(self, row: int) -> bool:
        """Whether no layer of the stream with this row lies on the host."""
        mask = self._masks.get(row)
        return mask is None or not mask.any()

    def begin(self, rows: list[StepRow]) -> None:
        """A step begins: place its streams, and start to fetch."""
        places = self.places
        if self._measured is not None:
            self._speeds.add(self._measured)
        self._speeds.learn()
        if self._stored is not None:  # the cells from which it comes may get other content now
            self._copies.wait(self._stored)
        self._audit()
        # A token has its page's number at its place: each page once, in order.
        pages = [row.places[:: self._size] // self._size for row in rows]
        for row, own in zip(rows, pages, strict=True):
            self._owner[own] = row.row
        running = np.zeros(places.alive.size, dtype=np.bool_)
        running[np.concatenate(pages)] = True
        places.unstage(places.staged()[np.logical_not(running[places.staged()])])
        held = running & places.alive
        self._place(rows, pages, running)
        places.stage(np.flatnonzero(running))
        self._new = np.concatenate([row.places[-row.new :] for row in rows])
        content = np.flatnonzero(held)
        self._queue = StagingQueue(groups(content, self._owner[content], self._masks))
        self._landing, self._layer = {}, 0
        decodes = all(row.new == 1 for row in rows)
        self._clock = LinkClock(self._speeds.known if decodes else None)
        self._measured = StepMoments(self._copies.moment()) if decodes else None
        self._fetch(self._queue.ahead(self._clock.most()))

    def before(self, layer: int) -> None:
        """A layer is about to read and write its KV; layers count from 0, in order."""
        while self._layer < layer:
            self._clock.ends()
            self._queue.done(self._layer)
            self._layer += 1
        self._fetch(self._queue.due(layer))
        self._clock.starts(layer)
        self._fetch(self._queue.ahead(self._clock.most()))
        if layer in self._landing:
            before = self._copies.moment()
            self._copies.wait(self._landing.pop(layer))
            if self._measured is not None:
                self._measured.waits.append((before, self._copies.moment()))
        if self._stored is not None and self._on_host(layer).any():
            # The tokens of a layer before this one leave the staging cells that it writes to, also
            # where a stream is new and nothing was fetched into them.
            self._copies.wait(self._stored)

    def after(self, layer: int) -> None:
        """A layer has written the KV of the step's tokens, and read all that it needs."""
        if self._measured is not None:
            self._measured.end = self._copies.moment()
        on_host = self._on_host(layer)
        if not on_host.any():
            return
        new = self._new[on_host]
        pages, offsets = new // self._size, new % self._size
        device = self.places.table[layer, pages] * self._size + offsets
        host = self.places.host_cells(layer, pages) * self._size + offsets
        self._stored = self._copies.tokens_to_host(device, host)

    def freed(self, pages: IntArray) -> None:
        """SGLang has taken pages back, of shape (n,)."""
        self.places.remove(pages)
        self._owner[pages] = NONE
        self._audit()

    def all_fit(self, pages: IntArray) -> bool:
        """Whether streams of so many pages in one layer lie on the device with all layers."""
        return int(pages.sum()) * self.places.layers <= self.places.device.count

    def carries(self, joined: IntArray, pages: int) -> bool:
        """Whether a prompt may join these streams, whose KV does not fit with it.

        The planner says; where it does not, or nothing was measured yet, it may.

        Args:
            joined: Pages of each in one layer, with what its answer is expected to take; of shape
                (streams,), at least two.
            pages: Of the prompt, likewise.
        """
        speeds, says = self._speeds.known, getattr(self._planner, "carries", None)
        if says is None or speeds is None or not speeds.layer:
            return True
        places = self.places
        newcomer = Newcomer(pages, joined, places.layers, places.device.count, speeds)
        try:
            return bool(says(newcomer))
        except Exception:
            self._fell_back()
            return True

    def clear(self) -> None:
        """SGLang has taken all pages back."""
        self.freed(np.flatnonzero(self.places.alive))

    def _audit(self) -> None:
        if self._audits and (trouble := self.places.audit()) is not None:
            raise RuntimeError(f"tokenflow: layer-wise memory: {trouble}")

    def _on_host(self, layer: int) -> BoolArray:
        """Of the step's new tokens: whether the layer lies on the host."""
        return self.places.on_host(layer, self._new // self._size)

    def _place(self, rows: list[StepRow], pages: list[IntArray], running: BoolArray) -> None:
        """Bring all streams into their layouts, and give new pages their places."""
        places, copies = self.places, self._copies
        live = np.flatnonzero(places.alive)
        # Pages of each row, with those that its last stream has not given back yet.
        held = np.bincount(self._owner[live], minlength=max(row.row for row in rows) + 1)
        in_step = {row.row: None for row in rows}
        old = {row: self._masks[row] for row in np.flatnonzero(held).tolist()}
        resting = [row for row in old if row not in in_step]
        fresh = np.flatnonzero(running & np.logical_not(places.alive))
        sizes = held[[*in_step, *resting]]
        sizes[: len(rows)] += [int(np.logical_not(places.alive[own]).sum()) for own in pages]
        self._masks = self._planned([*in_step, *resting], sizes, len(rows), old)
        changed = [row for row in old if not np.array_equal(old[row], self._masks[row])]
        self.switches += len(changed)
        moving = live[np.isin(self._owner[live], changed)]
        places.unstage(moving)
        wanted = self._wanted(moving)
        leaves = places.evict(moving, wanted)
        if len(leaves):
            self._stored = copies.to_host(leaves.device, leaves.host)
            copies.wait(self._stored)  # their cells get other content now
        places.add(fresh, self._wanted(fresh))
        comes = places.load(moving, wanted)
        if len(comes):
            copies.wait(copies.to_device(comes.device, comes.host, self._stored))

    def _planned(
        self, rows: list[int], pages: IntArray, running: int, old: dict[int, BoolArray]
    ) -> dict[int, BoolArray]:
        """Masks of the streams as they are to be; the first `running` ones are in the step."""
        layers = self.places.layers
        none = np.zeros(layers, dtype=np.bool_)
        in_step = np.arange(len(rows)) < running
        streams = StreamsInStep(
            rows=np.array(rows),
            pages=pages,
            running=in_step,
            fresh=np.array([row not in old for row in rows]),
            layouts=tuple(layout_of(old.get(row, none)) for row in rows),
            layers=layers,
            cells=self.places.device.count,
            page=self._size,
            speeds=self._speeds.known,
            paused=np.array([row in self.paused for row in rows]) & ~in_step,
        )
        masks = masks_of(streams.layouts, layers)  # the paused stay while they are in no one's way
        masks[:, ~streams.paused] = self._proposed(streams.of(~streams.paused))
        masks = fitting(masks, streams)
        return dict(zip(rows, masks.T, strict=True))

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

    def _wanted(self, pages: IntArray) -> BoolArray:
        """Masks of the streams that have these pages, of shape (layers, n)."""
        if not pages.size:
            return np.zeros((self.places.layers, 0), dtype=np.bool_)
        rows, of = np.unique(self._owner[pages], return_inverse=True)
        masks: BoolArray = np.stack([self._masks[row] for row in rows.tolist()], axis=1)
        return masks[:, of]

    def _fetch(self, fetches: list[Fetch]) -> None:
        """Copies into staging cells begin, in this order."""
        for each in fetches:
            host = self.places.host_cells(each.layer, each.pages)
            staging = self.places.table[each.layer, each.pages]
            ticket = self._copies.to_device(staging, host, self._stored)
            self._landing[each.layer] = ticket
            self._clock.asked(each.layer, each.pages.size)
            if self._measured is not None:
                self._measured.fetches.append((ticket, each.pages.size))
            self.fetched += each.pages.size
