"""Which fetch from the storage the link loads next, when there are several.

It is the one that admission takes first: device and link work on the same request, as in the
planner's `IoOrder.IN_TURN`. The order may change while fetches are under way. So the I/O thread is
handed on only as much as it can load until the scheduler looks again. Everything that decides here
is the same on all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

from tokenflow_sgl.engine.restore.fetch_ends import fetches_of
from tokenflow_sgl.engine.restore.link_thread import Turn, hand_on
from tokenflow_sgl.engine.restore.outlook import Outlook
from tokenflow_sgl.engine.restore.restored_request import Restoration
from tokenflow_sgl.engine.restore.tail_fetch import TailFetch, tail_of
from tokenflow_sgl.engine.sglang.controller import Controller, StorageFetch
from tokenflow_sgl.engine.sglang.tree import Tree
from tokenflow_sgl.restoration import link_shares


class LinkTurns:
    """The turns of all restorations' fetches on the link to the storage.

    Args:
        tree: SGLang's.
        restorations: Those under way, in the order in which they began.
        outlook: What is known.
        admission: The requests that wait, in the order in which they are admitted; None: first
            come, first served.
    """

    def __init__(
        self,
        tree: Tree,
        restorations: Collection[Restoration],
        outlook: Outlook,
        admission: Callable[[], Sequence[Any] | None],
    ) -> None:
        self._tree = tree
        self._page = int(tree.page_size)
        self._all = restorations
        self._outlook = outlook
        self._admission = admission

    def rank(self) -> None:
        """Note the place of each in the order of admission; one that is being computed is first.

        One that brings the beginning of another, too, goes before that one.
        """
        order = self._admission() if len(self._all) > 1 else None
        if order is None:
            for each in self._all:
                each.link.rank = 0  # those that began first go first
            return
        place = {id(request): number for number, request in enumerate(order)}
        for each in self._all:
            each.link.rank = place.get(id(each.request), -1)
        for each in reversed(list(self._all)):
            if each.leader is not None:
                leader = each.leader.link
                leader.rank = min(leader.rank, each.link.rank)

    def hand_on(self) -> None:
        """Give the I/O thread what it can load until the next pass."""
        controller, loading = self._tree.cache_controller, 0
        of = {each.operation: each for each in self._all}
        waiting: list[Restoration] = []
        for operation, reports in fetches_of(controller).items():
            fetch, each = tail_of(operation), of.get(operation)
            assert fetch is not None, "it was marked when it began"
            fetch.told = reports
            if fetch.handed is None:
                loading += 0 if each is None else each.left
            elif each is None or operation.is_terminated() or each.has_failed or not each.left:
                _give(controller, operation, fetch, None)  # nothing of it is loaded
            else:
                loading += each.loading(self._page)
                waiting.append(each)
        if not waiting:
            return
        waiting.sort(key=lambda each: each.link.rank)
        left = [each.left - each.loading(self._page) for each in waiting]
        for each, share in zip(waiting, self._shares(left, loading), strict=True):
            if share and (each.layered or share >= each.left - each.loading(self._page)):
                _give(controller, each.operation, each.tail, None)
            elif share:
                batches = math.ceil(share / (each.tail.batch * self._page))
                _give(controller, each.operation, each.tail, batches)

    def _shares(self, left: Sequence[int], loading: int) -> Sequence[int]:
        seconds = self._outlook.next_look
        if math.isinf(seconds):
            return left
        return link_shares(left, int(seconds * self._outlook.measured.rate) - loading)


def _give(
    controller: Controller, operation: StorageFetch, fetch: TailFetch, batches: int | None
) -> None:
    fetch.handed = None if batches is None or fetch.handed is None else fetch.handed + batches
    hand_on(controller, Turn(operation, batches))
