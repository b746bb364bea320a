"""Carries plans out: before a step KV moves, in it each layer waits for what it reads.

One step: the staging cells of the last one are free. The streams that hold KV get their layouts;
what leaves the device is copied first, since its cells take what comes. What only SGLang's prefix
tree has gives way before any stream does, and comes back when a stream begins with it. Then each
layer waits for its KV on the host to be in the staging cells, computes, and the new tokens of what
lies on the host follow to the host. Between steps no copy into a staging cell is under way, so that
pages may be freed, and plans may change, at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.contract import BoolArray, IntArray
from tokenflow_sgl.engine.layerwise.layer_copies import LayerCopies, Ticket
from tokenflow_sgl.engine.layerwise.layer_plans import LayerPlanner
from tokenflow_sgl.engine.layerwise.layer_speeds import LayerSpeeds, StepMoments
from tokenflow_sgl.engine.layerwise.link_clock import LinkClock
from tokenflow_sgl.engine.layerwise.page_owners import PageOwners
from tokenflow_sgl.engine.layerwise.page_places import PagePlaces
from tokenflow_sgl.engine.layerwise.planned_layers import PlannedLayers
from tokenflow_sgl.engine.layerwise.prompt_admission import hidden_pages
from tokenflow_sgl.engine.layerwise.staging_queue import PageFetch, StagingQueue, groups
from tokenflow_sgl.engine.layerwise.wait_times import Cause, WaitTimes

AT_ONCE = 1 / 64
"""Of the device's cells those that the tree's pages leave at once, beyond what a step needs: else
some would leave before each step."""


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
    """Moves KV of single layers between device and host on one rank, and lets layers wait for it.

    Args:
        places: Of all pages.
        page_size: Tokens of a page.
        planner: Proposes layouts.
        fallback: Does so from then on when the planner fails.
        copies: Of the memory that `places` numbers.
        audits: Look before every step, and when pages are taken back, whether each cell is in one
            hand: for debugging.

    Attributes:
        owners: Of all pages.
        plans: Where the layers of each stream are to lie.
        steps: So far.
        fetched: Pages of one layer that were copied into staging cells so far.
        stored, loaded: Likewise those that moved for good, to the host and back.
        waits: For copies.
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
        self._copies = copies
        self._audits = audits
        self.owners = PageOwners(places.alive.size)
        self.plans = PlannedLayers(
            *(planner, fallback, self.owners),
            layers=places.layers,
            cells=places.device.count,
            page=page_size,
        )
        self._new = np.zeros(0, dtype=np.int64)  # where the tokens of this step are put
        self._queue = StagingQueue(())
        self._clock = LinkClock(None)
        self._speeds = LayerSpeeds(places.layers, copies)
        # Of the last step, if it computes a token of each stream.
        self._measured: StepMoments | None = None
        self._landing: dict[int, Ticket] = {}  # the last copy for each layer
        self._stored: Ticket | None = None  # the last copy to the host
        self._layer = 0
        self.steps = self.fetched = self.stored = self.loaded = 0
        self.waits = WaitTimes(copies)

    def is_resident(self, row: int) -> bool:
        """Whether nothing that the stream with this row reads lies on the host."""
        layers = self.places.on_device(self.owners.read_by(row))
        return bool((layers == self.places.layers).all())

    def ended(self, rows: Sequence[int]) -> None:
        """The streams of these rows have ended: what is not freed of them is the prefix tree's."""
        self.owners.left(rows)
        self.plans.left(rows)

    def begin(self, rows: list[StepRow]) -> None:
        """A step begins: place its streams, and start to fetch."""
        places = self.places
        self.steps += 1
        if self._measured is not None:
            self._speeds.add(self._measured)
        self._speeds.learn()
        self.waits.learn()
        if self._stored is not None:  # the cells from which it comes may get other content now
            self.waits.wait(self._stored, "stores")
        self._audit()
        # A token has its page's number at its place: each page once, in order.
        pages = [row.places[:: self._size] // self._size for row in rows]
        came = self._owned(rows, pages)
        running = np.zeros(places.alive.size, dtype=np.bool_)
        running[np.concatenate(pages)] = True
        places.unstage(places.staged()[np.logical_not(running[places.staged()])])
        held = running & places.alive
        copied = self._place(rows, came, running)
        places.stage(np.flatnonzero(running))
        self._new = np.concatenate([row.places[-row.new :] for row in rows])
        content = np.flatnonzero(held)
        self._queue = StagingQueue(groups(content, self.owners.row[content], self.plans.masks))
        self._landing, self._layer = {}, 0
        decodes = all(row.new == 1 for row in rows)
        self._clock = LinkClock(self._speeds.known if decodes else None)
        begin = self._copies.moment()
        self._measured = StepMoments(begin, fetches=copied) if decodes else None
        self._fetch(self._queue.ahead(self._clock.most()))

    def before(self, layer: int) -> None:
        """A layer is about to read and write its KV; layers count from 0, in order."""
        self._come_to(layer)
        self._clock.starts(layer)
        self._fetch(self._queue.ahead(self._clock.most()))
        if layer in self._landing:
            self._wait(self._landing.pop(layer), "staging")
        if self._stored is not None and self._on_host(layer).any():
            # The tokens of a layer before this one leave the staging cells that it writes to, also
            # where a stream is new and nothing was fetched into them.
            self._wait(self._stored, "stores")

    def after(self, layer: int) -> None:
        """A layer has written the KV of the step's tokens, and read all that it needs.

        What the next one reads is fetched at once: a model computes more than attention meanwhile.
        """
        if self._measured is not None:
            self._measured.end = self._copies.moment()
        on_host = self._on_host(layer)
        if on_host.any():
            new = self._new[on_host]
            pages, offsets = new // self._size, new % self._size
            device = self.places.table[layer, pages] * self._size + offsets
            host = self.places.host_cells(layer, pages) * self._size + offsets
            self._stored = self._copies.tokens_to_host(device, host)
        self._come_to(layer + 1)

    def freed(self, pages: IntArray) -> None:
        """SGLang has taken pages back, of shape (n,)."""
        self.places.remove(pages)
        self.owners.freed(pages)
        self._audit()

    def all_fit(self, pages: IntArray) -> bool:
        """Whether streams of so many pages in one layer lie on the device with all layers."""
        return int(pages.sum()) * self.places.layers <= self.places.device.count

    @property
    def pages_at_once(self) -> int:
        """Pages of one layer with which streams can decode together at no layer's cost."""
        return hidden_pages(self.places.layers, self.places.device.count, self._speeds.known)

    def carries(self, joined: IntArray, pages: int) -> bool:
        """Whether a prompt may join these streams; arguments as of `PlannedLayers.carries`."""
        return self.plans.carries(joined, pages, self._speeds.known)

    def clear(self) -> None:
        """SGLang has taken all pages back."""
        self.freed(np.flatnonzero(self.places.alive))
        self.ended([*self.plans.masks])

    def _come_to(self, layer: int) -> None:
        """The layers before this one are done, and what it reads has to go now."""
        while self._layer < layer:
            self._clock.ends()
            self._queue.done(self._layer)
            self._layer += 1
        self._fetch(self._queue.due(layer))

    def _audit(self) -> None:
        if self._audits and (trouble := self.places.audit()) is not None:
            raise RuntimeError(f"tokenflow: layer-wise memory: {trouble}")

    def _on_host(self, layer: int) -> BoolArray:
        """Whether the layer of the step's new tokens lies on the host."""
        return self.places.on_host(layer, self._new // self._size)

    def _wait(self, ticket: Ticket, cause: Cause) -> None:
        """In a step, which is not to seem to compute meanwhile."""
        waited = self.waits.wait(ticket, cause)
        if self._measured is not None:
            self._measured.waits.append(waited)

    def _owned(self, rows: list[StepRow], pages: list[IntArray]) -> IntArray:
        """Say whose the pages of a step are; returns those that had another owner."""
        resting = self.plans.paused.difference(row.row for row in rows)
        came = [
            self.owners.read(row.row, own, resting) for row, own in zip(rows, pages, strict=True)
        ]
        return np.concatenate(came)

    def _place(
        self, rows: list[StepRow], came: IntArray, running: BoolArray
    ) -> list[tuple[Ticket, int]]:
        """Bring all streams into their layouts, and give new pages their places.

        Returns:
            Copies to the device, each with its pages.
        """
        places, copies, owner = self.places, self._copies, self.owners.row
        live = np.flatnonzero(places.alive)
        changed, needed = self.plans.plan(
            [row.row for row in rows], np.flatnonzero(running), self._speeds.known
        )
        leaving = self._leaving(places.device.count - needed)
        moving = np.unique(np.concatenate([live[np.isin(owner[live], changed)], came, leaving]))
        places.unstage(moving)
        wanted = self.plans.wanted(moving)
        leaves = places.evict(moving, wanted)
        if len(leaves):
            self.stored += len(leaves)
            self._stored = copies.to_host(leaves.device, leaves.host)
            self.waits.wait(self._stored, "moves")  # their cells get other content now
        fresh = np.flatnonzero(running & np.logical_not(places.alive))
        places.add(fresh, self.plans.wanted(fresh))
        comes = places.load(moving, wanted)
        if len(comes):
            self.loaded += len(comes)
            loaded = copies.to_device(comes.device, comes.host, self._stored)
            self.waits.wait(loaded, "moves")
            return [(loaded, len(comes))]
        return []

    def _leaving(self, room: int) -> IntArray:
        """Pages of the tree that leave the device, so that the rest has so many cells at most."""
        tree = self.owners.of_tree()
        over = int(self.places.on_device(tree).sum()) - room
        if over <= 0:
            return tree[:0]
        tree = self.owners.longest_first(tree)
        over += int(AT_ONCE * self.places.device.count)
        cells = self.places.on_device(tree).cumsum()
        return tree[: int(np.searchsorted(cells, over)) + 1]

    def _fetch(self, fetches: list[PageFetch]) -> None:
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
