"""Which stream the pages are for that SGLang's allocator is asked for, and the pages of its group.

SGLang's allocators are not told: a decode step of pages of one token asks for as many as it has
rows. So SGLang's two functions that allocate for a batch, and the one that loads a stream's KV from
the host, are wrapped: each says whose pages are asked for while it runs.

The book of pages is on the host. Pages that are freed are named by a tensor on the device; its copy
to the host is begun at once and waited for when a prefill or a load wants pages, or a step later.
A decode step waits for it, too, if it needs such pages at once. The copy lies behind the step that
runs: behind a long prefill the scheduler's thread may stand still for it, where SGLang's would not.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.offload.block_groups import GROUP_TOKENS, BlockGroups, Owners

Counts = NDArray[np.int64]
NO_OWNER = -1


class StreamPages:
    """The pages of an allocator, in a group for each stream.

    Args:
        pages: As many as the device has, from page 1.
        page_size: Tokens of a page.
        device: On which the pages' numbers are wanted.

    Attributes:
        tokens_left: Of a request: how many output tokens it is expected to make yet.
    """

    def __init__(self, pages: int, page_size: int, device: str) -> None:
        self._book = BlockGroups(pages, max(GROUP_TOKENS // page_size, 1))
        self._page = page_size
        self._device = torch.device(device)
        self.tokens_left: Callable[[Any], int] = _allowed
        self._asking: tuple[Owners, Counts | None] | None = None
        # Pages that are free and whose numbers are on their way to the host.
        self._coming: list[tuple[torch.Tensor, Any]] = []
        self._coming_pages = 0
        self._last_step = 0  # as many of them were begun before the last decode step
        self._owner_of: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._owners = 0
        self._unused: list[int] = []
        self._gone: deque[int] = deque()  # a request may end in any thread
        self._owner_of_row = np.full(0, NO_OWNER)
        self._row_of: dict[int, int] = {}

    @property
    def available(self) -> int:
        """Pages that can be taken."""
        return self._book.available + self._coming_pages

    def free_pages(self) -> torch.Tensor:
        """The numbers of all of them, shape (available,), on the device."""
        self._settle()
        return self._to_device(self._book.free_pages())

    # ---- who asks -------------------------------------------------------------------

    @contextmanager
    def extending(self, requests: Sequence[Req], tokens: Sequence[int]) -> Iterator[None]:
        """Each of these requests of a prefill batch asks for pages for so many tokens."""
        for request, count in zip(requests, tokens, strict=True):
            length = len(request.origin_input_ids) + len(request.output_ids)
            self._expect(request, max(length - int(request.prefix_len) - count, 0))
        owners = np.array([self._owner(request) for request in requests], dtype=np.int64)
        with self._for(owners, np.array(tokens, dtype=np.int64)):
            yield

    @contextmanager
    def decoding(self, rows: NDArray[np.int64]) -> Iterator[None]:
        """Each of these rows asks for a token more."""
        self._know_rows(rows)
        with self._for(self._owner_of_row[rows], np.ones(len(rows), dtype=np.int64)):
            yield

    @contextmanager
    def loading(self, request: Req) -> Iterator[None]:
        """A paused request asks for pages for what comes from the host."""
        self._expect(request, 0)
        with self._for(np.array([self._owner(request)]), None):
            yield

    def bind(self, requests: Sequence[Req], rows: NDArray[np.int64]) -> None:
        """Note that these requests have these rows from now on."""
        self._know_rows(rows)
        for request, row in zip(requests, rows.tolist(), strict=True):
            owner = self._owner(request)
            self._unbind(owner)
            self._unbind(int(self._owner_of_row[row]))
            self._owner_of_row[row] = owner
            self._row_of[owner] = row

    def released(self, request: Req) -> None:
        """A request has no row any more: what is left of its group is free."""
        owner = self._owner_of.get(request)
        if owner is not None:
            self._book.close(owner)
            self._unbind(owner)

    @contextmanager
    def _for(self, owners: Owners, counts: Counts | None) -> Iterator[None]:
        self._asking = owners, counts
        try:
            yield
        finally:
            self._asking = None

    def _expect(self, request: Req, certain: int) -> None:
        self._book.expect(
            self._owner(request),
            math.ceil(self.tokens_left(request) / self._page),
            math.ceil(certain / self._page),
        )

    def _owner(self, request: Req) -> int:
        owner = self._owner_of.get(request)
        if owner is None:
            while self._gone:
                ended = self._gone.popleft()
                self._book.forget(ended)
                self._unbind(ended)
                self._unused.append(ended)
            if not self._unused:
                self._unused.append(self._owners)
                self._owners += 1
            owner = self._owner_of[request] = self._unused.pop()
            weakref.finalize(request, self._gone.append, owner).atexit = False
        return owner

    def _unbind(self, owner: int) -> None:
        row = self._row_of.pop(owner, None)
        if row is not None:
            self._owner_of_row[row] = NO_OWNER

    def _know_rows(self, rows: NDArray[np.int64]) -> None:
        missing = int(rows.max(initial=-1)) + 1 - len(self._owner_of_row)
        if missing > 0:
            self._owner_of_row = np.append(self._owner_of_row, np.full(missing, NO_OWNER))

    # ---- pages ----------------------------------------------------------------------

    def tokens(self, total: int) -> Counts:
        """Into how many for each asker `total` tokens divide that are asked for together."""
        if self._asking is not None:
            counts = self._asking[1]
            if counts is not None and counts.sum() == total:
                return counts
        return np.array([total], dtype=np.int64)

    def take(self, counts: Counts) -> torch.Tensor | None:
        """Pages for each asker, one after the other; None if there are too few.

        Returns:
            Their numbers, shape (sum of counts,), on the device.
        """
        total = int(counts.sum())
        if total > self.available:
            return None
        single = total == np.count_nonzero(counts)
        self._settle(self._last_step if single and total <= self._book.available else None)
        self._last_step = len(self._coming)
        owners = self._asking[0] if self._asking is not None else None
        if owners is None or len(owners) != len(counts):
            pages = self._book.loose(total)
        elif single:
            pages = self._one_each(owners if total == len(owners) else owners[counts > 0])
        else:
            pages = np.concatenate(
                [
                    self._book.grow(owner, count) if owner != NO_OWNER else self._book.loose(count)
                    for owner, count in zip(owners.tolist(), counts.tolist(), strict=True)
                ]
            )
        return self._to_device(pages)

    def give(self, pages: torch.Tensor) -> None:
        """The pages with these numbers are free, once the copy of the numbers is here."""
        if self._device.type == "cpu":
            self._book.give(pages.numpy().astype(np.int64))
            return
        self._coming.append(self._to_host(pages))
        self._coming_pages += len(pages)

    def _one_each(self, owners: Owners) -> NDArray[np.int64]:
        known = owners != NO_OWNER
        if known.all():
            return self._book.step(owners)
        pages = np.empty(len(owners), dtype=np.int64)
        pages[known] = self._book.step(owners[known])
        pages[~known] = self._book.loose(int(np.count_nonzero(~known)))
        return pages

    def _settle(self, number: int | None = None) -> None:
        """Enter the first so many of the pages that come, or all."""
        number = len(self._coming) if number is None else number
        for numbers, arrived in self._coming[:number]:
            arrived.synchronize()
            self._book.give(numbers.numpy())
            self._coming_pages -= len(numbers)
        del self._coming[:number]

    def _to_host(self, pages: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """A copy of the numbers, and the event after which they are there."""
        numbers = torch.empty(pages.shape, dtype=torch.int64, pin_memory=True)
        numbers.copy_(pages, non_blocking=True)
        arrived = torch.get_device_module(self._device).Event()
        arrived.record()
        return numbers, arrived

    def _to_device(self, pages: NDArray[np.int64]) -> torch.Tensor:
        numbers = torch.from_numpy(pages)
        if self._device.type == "cpu":
            return numbers
        return numbers.pin_memory().to(self._device, non_blocking=True)


def _allowed(request: Req) -> int:
    """Output tokens that a request may make yet: what is expected while nothing is known."""
    return max(int(request.sampling_params.max_new_tokens) - len(request.output_ids), 0)
