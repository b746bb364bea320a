"""SGLang's allocators of KV memory with a book of block groups in place of their lists of pages.

What they promise stays theirs: how many tokens are available, when a request for pages fails, and
which token has which place in a page. Only which of the free pages serve is ours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sglang.srt.mem_cache.allocator.base import BaseTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

from tokenflow_sgl.engine.kv.stream_pages import Counts, StreamPages
from tokenflow_sgl.engine.refusal import UnsupportedError
from tokenflow_sgl.engine.sglang.overriding import checked, overrides
from tokenflow_sgl.engine.sglang.pools import Allocator


class _WithGroups(BaseTokenToKVPoolAllocator):  # type: ignore[misc]
    """What both have; their second bases make the rest."""

    @overrides("all pages are free, and no stream has a group")
    def clear(self) -> None:
        """All pages are free, and no stream has a group."""
        super().clear()
        self.free_pages = torch.empty(0, dtype=torch.int64, device=self.device)
        before: StreamPages | None = getattr(self, "pages", None)
        self.pages = StreamPages(self.size // self.page_size, self.page_size, self.device)
        if before is not None:
            self.pages.tokens_left = before.tokens_left

    @overrides("what is in groups counts as free")
    def available_size(self) -> int:
        """Tokens of the pages that can be taken, those in the groups of streams among them."""
        return int(self.pages.available * self.page_size)

    @overrides("which pages are free")
    def get_all_free_pages(self) -> torch.Tensor:
        """Numbers of the free pages, for SGLang's checks."""
        return self.pages.free_pages()

    @overrides("there is no list to merge")
    def merge_and_sort_free(self) -> None:
        """Nothing to do: what is freed is merged at once."""


@checked
class GroupTokenAllocator(_WithGroups, TokenToKVPoolAllocator):  # type: ignore[misc]
    """Allocator of pages of one token that keeps each stream's together."""

    @overrides("which places serve")
    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Places for so many tokens, shape (need_size,), or None."""
        return self.pages.take(self.pages.tokens(need_size))

    @overrides("merges them")
    def free(self, free_index: torch.Tensor) -> None:
        """Take places back, at the end of SGLang's group of frees if there is one."""
        if free_index.numel() == 0:
            return
        if self.free_group is None:
            self.pages.give(free_index)
        else:
            self.free_group.append(self._copy_for_free_group(free_index))


@checked
class GroupPagedAllocator(_WithGroups, PagedTokenToKVPoolAllocator):  # type: ignore[misc]
    """Pages of several tokens. SGLang's kernels place the tokens: in the pages of `free_pages`."""

    @overrides("which pages serve")
    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Whole pages for so many tokens, shape (need_size,), or None."""
        if not self._hand_over(np.array([need_size // self.page_size], dtype=np.int64)):
            return None
        found: torch.Tensor | None = super().alloc(need_size)
        return found

    @overrides("which pages serve")
    def alloc_extend(
        self,
        prefix_lens: torch.Tensor,
        prefix_lens_cpu: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        last_loc: torch.Tensor,
        extend_num_tokens: int,
        num_new_pages: int | None = None,
    ) -> torch.Tensor | None:
        """Places for a prefill batch, as SGLang's, or None."""
        counts = self._pages_of(seq_lens_cpu) - self._pages_of(prefix_lens_cpu)
        if not self._hand_over(counts):
            return None
        found: torch.Tensor | None = super().alloc_extend(
            prefix_lens,
            prefix_lens_cpu,
            seq_lens,
            seq_lens_cpu,
            last_loc,
            extend_num_tokens,
            int(counts.sum()),
        )
        return found

    @overrides("which pages serve in a decode step")
    def alloc_decode(
        self, seq_lens: torch.Tensor, seq_lens_cpu: torch.Tensor, last_loc: torch.Tensor
    ) -> torch.Tensor | None:
        """A place for each row of a decode step, as SGLang's, or None."""
        if not self._hand_over(self._pages_of(seq_lens_cpu) - self._pages_of(seq_lens_cpu - 1)):
            return None
        found: torch.Tensor | None = super().alloc_decode(seq_lens, seq_lens_cpu, last_loc)
        return found

    def _hand_over(self, counts: Counts) -> bool:
        taken = self.pages.take(counts)
        if taken is None:
            return False
        self.free_pages = taken
        return True

    def _pages_of(self, tokens: torch.Tensor) -> Counts:
        pages: Counts = -(-tokens.numpy().astype(np.int64) // self.page_size)
        return pages

    @overrides("merges the pages that are freed")
    def _release_page_ids(self, *page_ids: torch.Tensor) -> None:
        for pages in page_ids:
            self.pages.give(pages)


def with_groups(allocator: Allocator) -> Any:
    """An allocator with block groups for one of SGLang's that was just made.

    Raises:
        UnsupportedError: It is of a kind of which the pages are not simply handed out.
    """
    taken = allocator.dtype, allocator.device, allocator.get_kvcache(), allocator.need_sort
    if type(allocator) is TokenToKVPoolAllocator and not allocator.need_sort:
        return GroupTokenAllocator(allocator.size, *taken)
    if type(allocator) is PagedTokenToKVPoolAllocator and not allocator.need_sort:
        return GroupPagedAllocator(allocator.size, allocator.page_size, *taken)
    raise UnsupportedError(
        "block_groups (--tokenflow-tuning) does not work with SGLang's "
        f"{type(allocator).__name__} on this device and model: only its allocators of "
        "plain pages are served; leave the option out."
    )
