"""What restorations may expect of the device and of the link to the storage, by what is known."""

from __future__ import annotations

import bisect
import math
from collections.abc import Collection

from tokenflow_sgl.engine.restore.leader_figures import LeaderFigures
from tokenflow_sgl.engine.restore.restored_request import Restoration
from tokenflow_sgl.engine.restore.tail_fetch import BATCH_SECONDS
from tokenflow_sgl.restoration import Fetch

SHORT = 0.004
"""Seconds: rather than compute a chunk for what arrives this soon, the request waits."""
LONGEST_QUERY = 1.0
"""Seconds for which a request waits for the storage to say what it has, at most; less if computing
takes less."""
BATCHES_LATE = 4
"""The link is late when nothing has arrived for the time of so many batches."""


class Outlook:
    """When steps end and fetches land, as far as it is known, in one pass after the other.

    Args:
        restorations: All that are under way, in the order in which they began.
        page: Tokens of a page.
        chunk_size: Tokens of a prefill step at most.

    Attributes:
        measured: The figures of this pass.
    """

    def __init__(self, restorations: Collection[Restoration], page: int, chunk_size: int) -> None:
        self._all = restorations
        self._page = page
        self._chunk_size = chunk_size
        self.measured = LeaderFigures()
        self._moved_at = 0.0
        self._late = 0.0
        self._landings = Landings()
        self._in_step = 0.0

    def begin_pass(self, measured: LeaderFigures, moved: bool) -> None:
        """Look at all of them, once: there may be hundreds.

        Args:
            measured: The figures of this pass.
            moved: Whether something has arrived since the last one.
        """
        self.measured = measured
        self._landings = Landings()
        self._in_step = 0.0
        in_turn = sorted(self._all, key=lambda each: each.link.rank)
        loading = [each.loading(self._page) for each in in_turn]
        # What the I/O thread has got already comes before what is of a lower rank.
        ahead, slowest, behind, busy = 0, 0, sum(loading), False
        for number, (each, loads) in enumerate(zip(in_turn, loading, strict=True)):
            behind -= loads
            link, before = each.link, each.link.on_link
            link.number = number
            link.ahead = ahead if loads else ahead + behind
            link.on_link = bool(loads) and not busy
            busy = busy or bool(loads)
            moved = moved or (link.on_link and not before)
            if each.allocated and not each.fetched:
                ahead, slowest = ahead + each.left, max(slowest, each.tail.batch)
        if moved:
            self._moved_at = self.now
        self._late = 0.0
        if slowest and measured.rate > 0.0:
            since = self.now - self._moved_at
            expected = BATCHES_LATE * slowest * self._page / measured.rate
            self._late = since if since > expected + SHORT else 0.0
        for each in self._all:
            if math.isfinite(each.wait.landing):
                self._expect(each)

    @property
    def now(self) -> float:
        """Seconds, the same on all ranks."""
        return self.measured.now

    @property
    def known(self) -> bool:
        """Whether both the link and the prefills were measured."""
        return self.measured.rate > 0.0 and self.measured.prefill is not None

    @property
    def next_look(self) -> float:
        """Seconds until the scheduler looks again, at most; infinite while that is unknown."""
        if not self.known:
            return math.inf
        deepest = max((each.end for each in self._all if each.allocated), default=0)
        step = self.compute(max(deepest - self._chunk_size, 0), self._chunk_size)
        return max(step, self.lead) + 2 * BATCH_SECONDS

    @property
    def lead(self) -> float:
        """Seconds that the step that runs still takes."""
        return max(self.measured.step_end - self.now, 0.0)

    def compute(self, prefix: int, tokens: int) -> float:
        """Seconds of computing them behind `prefix`; 0.0 while unknown."""
        return self.measured.compute(prefix, tokens, self._chunk_size)

    def fetch(self, each: Restoration) -> Fetch:
        """Seconds until so many more of its tokens have arrived; infinite while unknown."""
        rate, late = self.measured.rate, self._late

        def seconds(tokens: int) -> float:
            if not tokens:
                return 0.0
            return (each.link.ahead + tokens) / rate + late if rate > 0.0 else math.inf

        return seconds

    def patience(self, each: Restoration) -> float:
        """Seconds for which the storage may be asked what it has of this request."""
        prefix = int(each.request.prefix_len)
        missing = len(each.request.full_untruncated_fill_ids) - prefix
        return min(self.compute(prefix, missing) or math.inf, LONGEST_QUERY)

    def waits(self, each: Restoration, gap: int) -> None:
        """Note that a head is computed while `gap` tokens of its tail have not arrived."""
        each.wait.needed = each.arrived + gap
        each.wait.landing = self.now + self.fetch(each)(gap)
        self._landings.add(each.link.number, each.wait.landing)

    def computes(self, prefix: int, tokens: int) -> None:
        """The next step computes so many tokens behind a prefix, too."""
        self._in_step += self.compute(prefix, tokens)

    def meets(self, each: Restoration, gap: int) -> None:
        """The last chunk of its head is in the next step; so many tokens will be left to fetch."""
        self._landings.add(each.link.number, self.now + self.fetch(each)(gap))

    def _expect(self, each: Restoration) -> None:
        """When the tail of one that waits for it lands, by what has arrived meanwhile."""
        missing = each.wait.needed - each.arrived
        if missing <= 0:
            self._landings.add(each.link.number, self.now)
            each.wait.landing = math.inf  # it has this pass for itself: it may lack something else
        elif not each.fetched and not self._late:  # else nothing comes, and it holds nothing up
            self._landings.add(each.link.number, self.now + self.fetch(each)(missing))

    def seconds_before_landing(self, each: Restoration) -> float:
        """What the next step may still take until one that came before has its tail.

        Infinite: none waits for it.
        """
        landing = self._landings.soonest(each.link.number)
        return landing - self.now - self.lead - self._in_step


class Landings:
    """When those that wait will have their tails, and the soonest one before any of them."""

    def __init__(self) -> None:
        # Of each the numbers grow and the times fall: others do not matter.
        self._numbers: list[int] = []
        self._times: list[float] = []

    def add(self, number: int, time: float) -> None:
        """The one of this number has its tail at this time."""
        if time >= self.soonest(number + 1):
            return
        at = bisect.bisect_left(self._numbers, number)
        end = at
        while end < len(self._times) and self._times[end] >= time:
            end += 1
        self._numbers[at:end], self._times[at:end] = [number], [time]

    def soonest(self, number: int) -> float:
        """When the first of those with lower numbers lands, seconds; infinite: none waits."""
        at = bisect.bisect_left(self._numbers, number)
        return self._times[at - 1] if at else math.inf
