"""What restorations may expect of the device and of the link to the storage, by what is known."""

from __future__ import annotations

import math
from collections.abc import Collection

from tokenflow_sgl.engine.restore.leader_figures import Measured
from tokenflow_sgl.engine.restore.restored_request import Restoration
from tokenflow_sgl.restoration import Fetch

SHORT = 0.004
"""Seconds: rather than compute a chunk for what arrives this soon, the request waits."""
BATCHES_LATE = 4
"""The link is late when nothing has arrived for the time of so many batches."""


class Outlook:
    """In one pass after the other.

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
        self.measured = Measured()
        self._moved_at = 0.0

    @property
    def now(self) -> float:
        """Seconds, the same on all ranks."""
        return self.measured.now

    @property
    def known(self) -> bool:
        """Whether both the link and the prefills were measured."""
        return self.measured.rate > 0.0 and self.measured.prefill is not None

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
        ahead = sum(other.left for other in self._fetched_before(each))

        def seconds(tokens: int) -> float:
            if not tokens:
                return 0.0
            return (ahead + tokens) / rate + late if rate > 0.0 else math.inf

        return seconds

    def on_link(self, each: Restoration) -> bool:
        """Whether its pages are what the link brings now."""
        return each.allocated and not self._fetched_before(each)

    def link_moved(self) -> None:
        """Something has arrived, or the link has something to bring again."""
        self._moved_at = self.now

    def before(self, each: Restoration) -> list[Restoration]:
        """Those that began before this one."""
        found: list[Restoration] = []
        for other in self._all:
            if other is each:
                break
            found.append(other)
        return found

    def _fetched_before(self, each: Restoration) -> list[Restoration]:
        """SGLang's I/O thread does one after the other."""
        return [other for other in self.before(each) if other.allocated and not other.fetched]

    @property
    def _late(self) -> float:
        """Seconds since anything has arrived, if that is too long; the link may have died."""
        waits = [each.tail.batch for each in self._all if each.allocated and not each.fetched]
        if not waits or not self.measured.rate > 0.0:
            return 0.0
        since = self.now - self._moved_at
        expected = BATCHES_LATE * max(waits) * self._page / self.measured.rate
        return since if since > expected + SHORT else 0.0
