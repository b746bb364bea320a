"""What SGLang's pools on the device have: of full-attention KV, and of windows and states if any.

Layers with a sliding window have a pool of their own, in which a stream keeps its last tokens only.
SGLang's own `available_size` is the smaller of both, which says nothing of either.

Recurrent states have one, too. SGLang lets no more streams run than it has states for: each takes
its own, one that it holds in the tree and one on the way there, and those that it tracks.
"""

from __future__ import annotations

from sglang.srt.environ import envs
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.kv_cache_configurator import MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO

from tokenflow_sgl.contract import Window
from tokenflow_sgl.contract.needs import most_kept
from tokenflow_sgl.engine.refusal import UnsupportedError
from tokenflow_sgl.engine.sglang.release import kept_by_windows
from tokenflow_sgl.engine.sglang.worker import LiveScheduler

STATES_KEPT = 3
"""Places that a stream takes to keep its state while it is paused. SGLang's tree keeps those at the
end of its prompt, where it resumed before and where it ended, too, and evicts what was not used for
longest, which is as likely to be that of a stream that is paused."""


class DevicePools:
    """The pools of one rank.

    Args:
        scheduler: SGLang's. What no running stream locks of its prefix tree can be evicted.
        most: Tokens that a step can give a stream.

    Attributes:
        window: What a stream needs of the window's pool.
        window_total: Tokens of that pool; 0: there is none.
        state_slots: Recurrent states that the pool has; 0: there is none.
        state_total: Streams that can keep theirs on the device, running or not.

    Raises:
        UnsupportedError: The pools are of a kind that was not tried.
    """

    def __init__(self, scheduler: LiveScheduler, most: int = 1) -> None:
        self._allocator = allocator = scheduler.token_to_kv_pool_allocator
        self._tree = tree = scheduler.tree_cache
        self._windows = bool(tree.supports_swa())
        self.window, self.window_total = Window(), 0
        self.state_slots = self.state_total = 0
        if tree.supports_mamba():
            if type(allocator) not in (TokenToKVPoolAllocator, PagedTokenToKVPoolAllocator):
                raise UnsupportedError(
                    "--scheduler tokenflow serves models with recurrent states that have one pool "
                    "of KV and one of states, both of fixed size; this model's KV is "
                    f"{type(allocator).__name__}'s, start it without the flag."
                )
            rows, running = scheduler.req_to_token_pool, int(scheduler.max_running_requests)
            self.state_slots = int(rows.mamba_allocator.size)
            tracked = int(rows.mamba_initial_tracking_slots)
            each = MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO + tracked
            spare = max(self.state_slots - each * running, 0)
            self.state_total = running + spare // STATES_KEPT
        if not self._windows:
            return
        if (
            type(allocator) is not SWATokenToKVPoolAllocator
            or allocator.swa_req_ring
            or not allocator.size_full
        ):
            raise UnsupportedError(
                "--scheduler tokenflow serves sliding-window models whose layers have two pools of "
                "fixed size, one of them with all tokens; this model's are "
                f"{type(allocator).__name__}'s, start it without the flag."
            )
        self.window_total = int(allocator.size_swa)
        # Whether a bundle has left a window is looked at once in a step, of several tokens maybe.
        late = max(int(envs.SGLANG_SWA_EVICTION_INTERVAL.get()), 1) + most - 1
        kept = most_kept(kept_by_windows(tree), late, int(scheduler.page_size))
        chunk = scheduler.chunked_prefill_size  # None: no limit
        self.window = Window(tokens=kept, prefill=self.window_total if chunk is None else chunk)

    @property
    def kv_free(self) -> int:
        """Tokens of full-attention KV that can be had at once."""
        if self._windows:
            return int(self._allocator.full_available_size() + self._tree.full_evictable_size())
        return int(self._allocator.available_size()) + int(self._tree.evictable_size())

    @property
    def window_free(self) -> int:
        """Tokens of the window's pool that can be had at once; 0 without one."""
        if not self._windows:
            return 0
        return int(self._allocator.swa_available_size() + self._tree.swa_evictable_size())
