"""Device memory for copies of tails: taken where there is plenty, given back as it is needed."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch

from tokenflow_sgl.engine.restore.head_chunks import HeadChunks
from tokenflow_sgl.engine.restore.outlook import Outlook
from tokenflow_sgl.engine.restore.prefix_in_tree import room_of
from tokenflow_sgl.engine.restore.restored_request import Restoration, Stage
from tokenflow_sgl.engine.sglang.tree import Tree

SPARE = 1.125
"""Device memory that is taken for a tail is so many times what it is expected to need."""


class CopyMemory:
    """The device memory that copies of tails have, of all restorations together.

    Args:
        restorations: Those under way.
        tree_cache: SGLang's prefix tree.
        outlook: What is known.
        chunks: Say how long a tail will be.
        chunk_size: Tokens of a prefill step at most.
    """

    def __init__(
        self,
        restorations: Collection[Restoration],
        tree_cache: Tree,
        outlook: Outlook,
        chunks: HeadChunks,
        chunk_size: int,
    ) -> None:
        self._all = restorations
        self._tree = tree_cache
        self._outlook = outlook
        self._chunks = chunks
        self._chunk_size = chunk_size

    @property
    def held_tokens(self) -> int:
        """Tokens of device memory of which SGLang's tree knows nothing."""
        return sum(each.copies.held for each in self._all)

    @property
    def held(self) -> list[torch.Tensor]:
        """The places of that memory, for debugging."""
        return [each.copies.slots for each in self._all if each.copies.slots is not None]

    def begin_pass(self, needed: int) -> None:
        """Take some for the tail that arrives next, and give all back where it gets scarce.

        Args:
            needed: Tokens that the next step may take.
        """
        for each in self._all:
            used = each.stage is not Stage.PROBE and each.leader is None
            if each.link.on_link and used and not each.copies.asked:
                self._take(each, needed)
        self.give_back(needed - room_of(self._tree) if self.held_tokens else 0)

    def give_back(self, tokens: float = math.inf) -> None:
        """SGLang needs so many tokens of the memory at least: some tails are copied later.

        Those that began last, as they are served last.
        """
        for each in reversed(list(self._all)):
            if tokens <= 0:
                return
            if each.copies.held or math.isinf(tokens):
                tokens -= each.copies.held
                each.copies.give_back()

    def end(self) -> None:
        """The device's memory goes away: nothing may be written there any more."""
        self.give_back()
        self._tree.cache_controller.l2_transfer_engine.host_to_device_stream.synchronize()

    def _take(self, each: Restoration, needed: int) -> None:
        page = int(self._tree.page_size)
        tokens = math.ceil(self._chunks.tail(each) * SPARE / page) * page
        own = len(each.request.full_untruncated_fill_ids) - each.start + self._chunk_size
        each.copies.reserve(tokens, own + needed)  # or it would be given back at once
