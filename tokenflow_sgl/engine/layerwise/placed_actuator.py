"""Carries decisions out where KV is placed layer by layer: what runs is what steps carry.

SGLang counts pages of both sides. The policy sees the two apart: the device has the tokens that fit
it with all layers, and those of which the link fetches what lies on the host while layers compute.
Paused streams lie on the host, though their layers leave only when others need the cells. A step
can have more than that; it only takes longer.
"""

from __future__ import annotations

from typing import Any

from tokenflow_sgl.engine.actuator import EngineActuator
from tokenflow_sgl.engine.layerwise.layer_executor import LayerExecutor
from tokenflow_sgl.engine.layerwise.layerwise_pool import LayerwisePool
from tokenflow_sgl.engine.layerwise.shared_pages import shared_pages
from tokenflow_sgl.lifecycle import Missing


class PlacedActuator(EngineActuator):
    """The streams of a server with layer-wise KV."""

    mirrored = False

    @property
    def pool(self) -> LayerwisePool:
        """SGLang's pool, which is ours."""
        found: LayerwisePool = self._scheduler.token_to_kv_pool_allocator.get_kvcache()
        return found

    @property
    def executor(self) -> LayerExecutor:
        """Where the layers lie."""
        return self.pool.executor

    @property
    def total(self) -> int:
        """KV tokens of which steps take no longer than if all lay on the device.

        As the leader has measured its link, for all ranks.
        """
        scheduler = self._scheduler
        return int(scheduler.max_total_num_tokens) - int(scheduler.tf_clock.host_total)

    @property
    def free(self) -> int:
        """Of these, what the streams that compute leave; below 0: they do not all fit."""
        page, owners = int(self._scheduler.page_size), self.executor.owners
        # One that was thrown out has a result in flight, and no pages.
        holding = [req for req in dict.fromkeys(self._computing) if req.kv.holds_kv]
        rows = [int(req.kv.req_pool_idx) for req in holding]
        allocated = sum(-(-int(req.kv.kv_allocated_len) // page) for req in holding)
        new = allocated - sum(owners.read_by(row).size for row in rows)  # since their last steps
        return self.total - page * (int(owners.owned(rows).sum()) + new)

    def shared(self, req: Any) -> int:
        """KV tokens of a request that a running stream has, so that it takes no memory for them."""
        page = int(self._scheduler.page_size)
        return page * shared_pages(self.pool, self._scheduler.tree_cache, req)

    @property
    def left(self) -> int:
        """Of these, what the rest of a prompt under way leaves."""
        return self.free - self.promised

    @property
    def writes(self) -> bool:
        """No copy is made before a pause."""
        return False

    def settle(self, now: float) -> None:
        """No copy is under way between steps."""

    def missing(self, slot: int) -> Missing:
        """No load overlaps with the steps before the one that needs it."""
        return Missing()
