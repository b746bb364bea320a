"""Takes running streams out of the batch; their KV stays where it is, layer by layer.

A stream that is paused keeps its pages and its row. Nothing is copied for it at once: its layers
leave the device when a step needs their cells (`layer_executor`), and come back when it is in a
step again. So nothing is computed anew, and there is no prefix tree for it to lie in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.managers.overlap_utils import RelayPayload
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.mem_cache.common import release_kv_cache

from tokenflow_sgl.engine.kv.preempt import Pauser
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.worker import LiveScheduler


class PlacedPauser(Pauser):
    """The streams that are draining or paused."""

    @property
    def placed(self) -> list[Any]:
        """The paused ones that have their KV; others lost it, and have it computed again."""
        return [request for request in self.paused if request.kv.holds_kv]

    def drop_draining(self) -> None:
        """The weights may change now: no KV is kept."""
        super().drop_draining()
        for request in self.placed:
            self.drop(request)
            self.lose(request)

    def give_up(self, request: Req) -> None:
        """A paused stream loses its pages to others.

        Those that SGLang's prefix tree still has when it goes on are not computed again.
        """
        release_kv_cache(request, self._tree_cache, checkpoint=True)
        self.lose(request)

    def drop(self, request: Req) -> None:
        """Give its row and its pages back, and keep nothing."""
        release_kv_cache(request, self._tree_cache, checkpoint=False)

    def _release(self, request: Req, keep: bool = True) -> None:
        if keep:
            self.hold(request)
        else:
            super()._release(request, keep)


def decoding_again(scheduler: LiveScheduler, requests: Sequence[Req]) -> Any:
    """A batch of paused streams that have their KV, like one that has just been prefilled.

    It is made as SGLang's decode servers make it of streams whose KV has come.
    """
    batch = ScheduleBatch.init_new(
        list(requests),
        scheduler.req_to_token_pool,
        scheduler.token_to_kv_pool_allocator,
        scheduler.tree_cache,
        scheduler.model_config,
        scheduler.enable_overlap,
        scheduler.spec_algorithm,
    )
    ends = [request.extend_end for request in requests]
    for request in requests:
        request.extend_end = request.prefix_len  # nothing is left to prefill
    batch.prepare_for_prebuilt()
    for request, end in zip(requests, ends, strict=True):
        request.extend_end = end
    last = torch.tensor([request.output_ids[-1] for request in requests], dtype=torch.int64)
    # The next step finds its input where those find theirs that were in the last one.
    payload = RelayPayload(bonus_tokens=last.to(batch.device))
    scheduler.future_map.stash(batch.req_pool_indices, payload)
    return batch
