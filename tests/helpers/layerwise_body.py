"""A made-up engine around the layer executor: KV that says of what it is, and late copies."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tokenflow_sgl.contract import IntArray
from tokenflow_sgl.engine.layerwise.even_spread import EvenSpread
from tokenflow_sgl.engine.layerwise.layer_copies import Ticket
from tokenflow_sgl.engine.layerwise.layer_executor import LayerExecutor, StepRow
from tokenflow_sgl.engine.layerwise.layer_plans import LayerPlanner, StreamsInStep
from tokenflow_sgl.engine.layerwise.page_places import PagePlaces
from tokenflow_sgl.placement import Layout

POISON = -7


class LateCopies:
    """Copies end when something waits for them, or at any time before.

    Sources are read when a copy ends, and targets are poisoned when it may begin: what reads or
    writes too early is seen.

    Args:
        eager: Probability with which the oldest copy of a direction ends at each call.
    """

    def __init__(self, device: int, host: int, page: int, chance: random.Random, eager: float):
        self.page = page
        self.device = np.full((device + 1) * page, POISON, dtype=np.int64)
        self.host = np.full((host + 1) * page, POISON, dtype=np.int64)
        self._chance, self._eager = chance, eager
        self._queues: dict[str, deque[tuple[int, Callable[[], None]]]] = {
            "in": deque(),
            "out": deque(),
        }
        self._number = 0

    def to_device(self, device: IntArray, host: IntArray, after: Ticket | None) -> Ticket:
        if after is not None:
            self.wait(after)
        to, source = self._tokens(device), self._tokens(host)
        self.device[to] = POISON

        def copy() -> None:
            self.device[to] = self.host[source]

        return self._submit("in", copy)

    def to_host(self, device: IntArray, host: IntArray) -> Ticket:
        return self.tokens_to_host(self._tokens(device), self._tokens(host))

    def tokens_to_host(self, device: IntArray, host: IntArray) -> Ticket:
        def copy() -> None:
            self.host[host] = self.device[device]

        return self._submit("out", copy)

    def moment(self) -> object:
        return None

    def seconds(self, begin: object, end: object) -> float | None:
        """Anything: what is believed of the link decides when copies go, and nothing else."""
        return self._chance.choice((None, self._chance.random()))

    def wait(self, ticket: Ticket) -> None:
        name, number = ticket.end
        queue = self._queues[name]
        while queue and queue[0][0] <= number:
            queue.popleft()[1]()

    def _submit(self, name: str, copy: Callable[[], None]) -> Ticket:
        self._number += 1
        self._queues[name].append((self._number, copy))
        for each in self._queues.values():
            if each and self._chance.random() < self._eager:
                each.popleft()[1]()
        return Ticket(self.moment(), (name, self._number))

    def _tokens(self, cells: IntArray) -> IntArray:
        return (cells[:, None] * self.page + np.arange(self.page)).reshape(-1)


class RandomLayouts:
    """Any layers of any stream, others in each step."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def layouts(self, streams: StreamsInStep) -> Sequence[Layout]:
        layers = range(1, streams.layers + 1)
        share = [self._chance.choice((0.0, 0.3, 0.7, 1.0)) for _ in streams.rows]
        return [tuple(n for n in layers if self._chance.random() < each) for each in share]


@dataclass
class Stream:
    row: int
    places: list[int] = field(default_factory=list)


class MadeUpEngine:
    """Streams with pages, and steps that read all that they should have.

    What a layer reads of a token says which layer, stream and position it is of.
    """

    def __init__(
        self,
        *,
        layers: int,
        pages: int,
        ratio: float,
        page: int,
        chance: random.Random,
        planner: LayerPlanner | None = None,
        eager: float = 0.2,
    ) -> None:
        self.layers, self.page, self._chance = layers, page, chance
        cells = int(pages * layers / ratio)
        self.copies = LateCopies(cells, layers * pages, page, chance, eager)
        self.places = PagePlaces(layers, pages + 1, cells, layers * pages)
        self.executor = LayerExecutor(
            self.places,
            page,
            planner or RandomLayouts(chance),
            EvenSpread(),
            self.copies,
            audits=True,
        )
        self.free = list(range(1, pages + 1))
        self.streams: dict[int, Stream] = {}
        self._freed_late: list[int] = []
        self._born = 0
        self._age: dict[int, int] = {}

    def arrive(self) -> int:
        row = min(set(range(1, len(self.streams) + 2)) - set(self.streams))
        self._born += 1
        self.streams[row], self._age[row] = Stream(row), self._born
        return row

    def end(self, row: int) -> None:
        places = np.array(self.streams.pop(row).places, dtype=np.int64)
        pages = np.unique(places // self.page)
        if pages.size and self._chance.random() < 0.3:
            # SGLang frees the page of a token that it submitted too much one step later.
            self._freed_late.append(int(pages[-1]))
            pages = pages[:-1]
        self._free(pages)

    def _free(self, pages: IntArray) -> None:
        self.executor.freed(pages)
        self.free += pages.tolist()
        self._chance.shuffle(self.free)

    def free_late(self) -> None:
        """The pages that were not freed with their streams."""
        self._free(np.array(self._freed_late, dtype=np.int64))
        self._freed_late = []

    def step(self, new: dict[int, int]) -> bool:
        """Compute so many tokens of each of these streams; false: there are too few pages."""
        needed = sum(
            -(-(len(self.streams[row].places) + n) // self.page)
            - -(-len(self.streams[row].places) // self.page)
            for row, n in new.items()
        )
        if needed > len(self.free):
            return False
        for row, number in new.items():
            places = self.streams[row].places
            for _ in range(number):
                if len(places) % self.page == 0:
                    places.append(self.free.pop() * self.page)
                else:
                    places.append(places[-1] + 1)
        rows = [
            StepRow(row, np.array(self.streams[row].places, dtype=np.int64), number)
            for row, number in new.items()
        ]
        self.executor.begin(rows)
        for layer in range(self.layers):
            self.executor.before(layer)
            for row in rows:
                at = self._where(layer, row.places)
                self.copies.device[at[-row.new :]] = self._content(layer, row)[-row.new :]
                assert np.array_equal(self.copies.device[at], self._content(layer, row))
            self.executor.after(layer)
        self.free_late()
        return True

    def _where(self, layer: int, places: IntArray) -> IntArray:
        cells = self.places.table[layer, places // self.page]
        assert (cells > 0).all()
        return cells * self.page + places % self.page

    def _content(self, layer: int, row: StepRow) -> IntArray:
        position = np.arange(row.places.size)
        return (self._age[row.row] * self.layers + layer) * 100_000 + position
