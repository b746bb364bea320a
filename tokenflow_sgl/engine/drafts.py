"""What speculative decoding changes for the streams of a scheduler: steps of several tokens."""

from __future__ import annotations

from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
from sglang.srt.runtime_context import get_spec, max_speculative_num_draft_tokens

from tokenflow_sgl.contract import Growth
from tokenflow_sgl.costs import StepTimer
from tokenflow_sgl.engine.sglang.worker import LiveScheduler
from tokenflow_sgl.engine.unsupported import check_speculation


class Drafts:
    """The drafts that each decode step verifies; none without speculation.

    Attributes:
        most: Tokens that a step can give a stream.
        ahead: KV tokens that SGLang allocates for each stream beyond its own.
    """

    def __init__(self, scheduler: LiveScheduler) -> None:
        """Read what SGLang's scheduler drafts and verifies.

        Raises:
            UnsupportedError: SGLang has chosen options of speculation that are not served.
        """
        self._page = int(scheduler.page_size)
        self.most, self.ahead = 1, 0
        if not scheduler.spec_algorithm.is_none():
            check_speculation(get_spec(), self._page)
            self.most = max(max_speculative_num_draft_tokens() or 1, 1)
            self.ahead = int(get_alloc_reserve_per_decode())

    def growth(self, timer: StepTimer) -> Growth:
        """How the KV of streams that decode grows, by what was accepted of their drafts."""
        return Growth(self._page, timer.tokens_per_step, self.ahead)
