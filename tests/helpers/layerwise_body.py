"""A made-up engine around the layer executor: KV that says of what it is, and late copies."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    """Where its tokens are, and a number for each that no other content has."""

    row: int
    places: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


def switches_of(executor: LayerExecutor) -> list[int]:
    """Gets, for each step that follows, the number of streams whose layout it changes."""
    switches, plan = [], executor.plans.plan

    def counting(*given: Any) -> Any:
        changed, needed = plan(*given)
        switches.append(len(changed))
        return changed, needed

    executor.plans.plan = counting  # type: ignore[method-assign]
    return switches


class MadeUpEngine:
    """Streams with pages, and steps that read all that they should have.

    What a layer reads of a token says which layer and which token it is of. Beginnings of streams
    can be kept when these have ended, and while they run, and others can begin with them, as in a
    prefix tree.
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
        self.kept: list[Stream] = []
        self._holders: Counter[int] = Counter()  # of each page: streams, and what is kept
        self._freed_late: list[int] = []
        self._born = 0

    def arrive(self, beginning: Stream | None = None) -> int:
        """A stream comes, which may begin with whole pages of something that is kept."""
        row = min(set(range(1, len(self.streams) + 2)) - set(self.streams))
        self.streams[row] = Stream(row)
        if beginning is not None:
            self.streams[row] = Stream(row, [*beginning.places], [*beginning.tokens])
            self._holders.update(self._pages(beginning.places))
        return row

    def keep(self, row: int) -> Stream:
        """The whole pages of a stream outlive it."""
        stream = self.streams[row]
        whole = len(stream.places) // self.page * self.page
        kept = Stream(0, stream.places[:whole], stream.tokens[:whole])
        self._holders.update(self._pages(kept.places))
        self.kept.append(kept)
        return kept

    def forget(self, kept: Stream) -> None:
        """What was kept is given up; streams that have begun with it go on."""
        self.kept.remove(kept)
        self._let_go(self._pages(kept.places))

    def end(self, row: int) -> None:
        pages = self._pages(self.streams.pop(row).places)
        if pages and self._holders[pages[-1]] == 1 and self._chance.random() < 0.3:
            # SGLang frees the page of a token that it submitted too much one step later.
            self._freed_late.append(pages.pop())
        self._let_go(pages)
        self.executor.ended([row])

    def _pages(self, places: Sequence[int]) -> list[int]:
        return [place // self.page for place in places[:: self.page]]

    def _let_go(self, pages: Sequence[int]) -> None:
        self._holders.subtract(pages)
        self._free([page for page in pages if not self._holders[page]])

    def _free(self, pages: list[int]) -> None:
        self.executor.freed(np.array(pages, dtype=np.int64))
        self.free += pages
        self._chance.shuffle(self.free)

    def free_late(self) -> None:
        """The pages that were not freed with their streams."""
        late, self._freed_late = self._freed_late, []
        self._let_go(late)

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
            stream = self.streams[row]
            for _ in range(number):
                if len(stream.places) % self.page == 0:
                    stream.places.append(self.free.pop() * self.page)
                    self._holders[stream.places[-1] // self.page] += 1
                else:
                    stream.places.append(stream.places[-1] + 1)
                self._born += 1
                stream.tokens.append(self._born)
        rows = [
            StepRow(row, np.array(self.streams[row].places, dtype=np.int64), number)
            for row, number in new.items()
        ]
        self.executor.begin(rows)
        for layer in range(self.layers):
            self.executor.before(layer)
            for row in rows:
                at = self._where(layer, row.places)
                content = np.array(self.streams[row.row].tokens) * self.layers + layer
                self.copies.device[at[-row.new :]] = content[-row.new :]
                assert np.array_equal(self.copies.device[at], content)
            self.executor.after(layer)
        self.free_late()
        return True

    def _where(self, layer: int, places: IntArray) -> IntArray:
        cells = self.places.table[layer, places // self.page]
        assert (cells > 0).all()
        return cells * self.page + places % self.page
