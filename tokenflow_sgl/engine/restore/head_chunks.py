"""How much of a head is computed next, by what is known of the device, the link and the others."""

from __future__ import annotations

import math

from tokenflow_sgl.engine.restore.outlook import SHORT, Outlook
from tokenflow_sgl.engine.restore.restored_request import Restoration
from tokenflow_sgl.restoration import HeadPlanner, Known, next_head, tokens_within


class HeadChunks:
    """How many tokens of its head a restoration computes next; asked anew before each chunk.

    Args:
        planner: Decides for each request alone.
        outlook: What is known.
        page: Tokens of a page.
        chunk_size: Tokens of a prefill step at most.
    """

    def __init__(self, planner: HeadPlanner, outlook: Outlook, page: int, chunk_size: int) -> None:
        self._planner = planner
        self._outlook = outlook
        self._page = page
        self._chunk_size = chunk_size

    def next(self, each: Restoration, head: int) -> int | None:
        """Tokens behind the first `head` ones; the tail has not arrived so far.

        Returns:
            0: none yet. None: all are computed, as what comes is of no use.
        """
        gap = each.end - each.arrived - head
        if each.fetched:
            return gap if each.arrived else None  # no more comes
        if not self._outlook.known:
            return self._meet(each, head, gap)
        suffix = len(each.request.full_untruncated_fill_ids) - each.end
        known = self._known(each)
        chunk = next_head(self._planner, head, each.end, each.arrived, suffix, known, SHORT)
        each.wait.landing = math.inf
        if not chunk:
            if chunk == 0:
                self._outlook.waits(each, gap)
            return chunk
        # 0 here is for this pass only: it waits for another one, not for its own tail.
        return self.behind_others(each, head, chunk)

    def alone(self, each: Restoration, head: int) -> int | None:
        """Tokens that one that is computed alone takes next; None: as SGLang likes."""
        left = len(each.request.full_untruncated_fill_ids) - head
        chunk = self.behind_others(each, head, left)
        each.step.chunk = chunk if chunk < left else 0
        return chunk if chunk < left else None

    def tail(self, each: Restoration) -> int:
        """Tokens that it will have to fetch, by what is known before its head is begun."""
        gap = each.end - each.start
        return gap - self._meet(each, each.start, gap) if self._outlook.known else 0

    def _meet(self, each: Restoration, head: int, gap: int) -> int:
        return self._planner.head_tokens(head, gap, wait=SHORT, **self._known(each))

    def _known(self, each: Restoration) -> Known:
        return {
            "compute": self._outlook.compute,
            "fetch": self._outlook.fetch(each),
            "page": self._page,
            "lead": self._outlook.lead,
        }

    def behind_others(self, each: Restoration, head: int, chunk: int) -> int:
        """How many of these tokens delay no earlier request that waits for its tail."""
        within = self._outlook.seconds_before_landing(each)
        if math.isinf(within):
            return chunk
        step = min(chunk, self._chunk_size)
        fits = tokens_within(head, step, within, compute=self._outlook.compute, page=self._page)
        return chunk if fits >= step else fits
