"""The body of a server whose KV is placed layer by layer: paused streams keep theirs.

SGLang counts pages of both sides. The policy sees the two apart: the device has the tokens that fit
it with all layers, and those of which the link fetches what lies on the host while layers compute.
Paused streams lie on the host, though their layers leave only when others need the cells. A step
can have more than that; it only takes longer.
"""

from __future__ import annotations

from typing import Any

from tokenflow_sgl.engine.body.unified import StreamMemory, UnifiedBody
from tokenflow_sgl.engine.book import Book
from tokenflow_sgl.engine.extension import Extensions
from tokenflow_sgl.engine.layerwise.layer_executor import LayerExecutor
from tokenflow_sgl.engine.layerwise.layerwise_pool import LayerwisePool
from tokenflow_sgl.engine.layerwise.placed_adder import placed_adder_class
from tokenflow_sgl.engine.layerwise.placed_pauser import PlacedPauser, decoding_again
from tokenflow_sgl.engine.layerwise.shared_pages import shared_pages
from tokenflow_sgl.engine.prefill_adder import AdmissionLimits
from tokenflow_sgl.engine.sglang.batch import ReqBatch
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.worker import LiveScheduler
from tokenflow_sgl.engine.telemetry.applied import trace
from tokenflow_sgl.engine.telemetry.prometheus import Recorder
from tokenflow_sgl.engine.unsupported import undisturbed_without_prefill
from tokenflow_sgl.lifecycle import Missing

LOOKED_STEPS = 64
"""After so many steps the leader says anew what a step carries."""


class PlacedBody(UnifiedBody):
    """The streams of a server with layer-wise KV."""

    pauser: PlacedPauser
    mirrored = False
    without_hicache = "off (paused KV is placed layer by layer)"

    def __init__(
        self,
        scheduler: LiveScheduler,
        book: Book,
        memory: StreamMemory,
        pauser: PlacedPauser,
        extensions: Extensions,
        recorder: Recorder,
    ) -> None:
        """Build the body of a server with layer-wise KV; arguments as of `UnifiedBody`."""
        super().__init__(scheduler, book, memory, pauser, extensions, recorder)
        self._looked = 0  # steps that there had been when the leader last looked
        self._carried = 0  # tokens that a step carries, as of then
        self._book.clock.host_total = self.host_tokens()  # before the leader's first word

    # ---- the memory -----------------------------------------------------------------

    @property
    def pool(self) -> LayerwisePool:
        """SGLang's pool, which is ours."""
        found: LayerwisePool = self._scheduler.token_to_kv_pool_allocator.get_kvcache()
        return found

    @property
    def executor(self) -> LayerExecutor:
        """What moves the KV of layers, and lets layers wait for it."""
        return self.pool.executor

    def host_tokens(self) -> int:
        """Tokens of SGLang's pages that no step carries without taking longer.

        The leader measures, and its clock tells all ranks.
        """
        scheduler, executor = self._scheduler, self.executor
        if not self._carried or executor.steps - self._looked >= LOOKED_STEPS:
            self._looked = executor.steps
            self._carried = executor.pages_at_once * int(scheduler.page_size)
        return max(int(scheduler.max_total_num_tokens) - self._carried, 0)

    @property
    def total(self) -> int:
        """KV tokens of which steps take no longer than if all lay on the device.

        As the leader has measured its link, for all ranks.
        """
        return int(self._scheduler.max_total_num_tokens) - int(self._book.clock.host_total)

    @property
    def free(self) -> int:
        """Tokens that computing streams leave of those that no step carries; below 0: too few."""
        page, owners = int(self._scheduler.page_size), self.executor.owners
        # One that was thrown out has a result in flight, and no pages.
        holding = [req for req in dict.fromkeys(self._computing) if req.kv.holds_kv]
        rows = [int(req.kv.req_pool_idx) for req in holding]
        allocated = sum(-(-int(req.kv.kv_allocated_len) // page) for req in holding)
        new = allocated - sum(owners.read_by(row).size for row in rows)  # since their last steps
        return self.total - page * (int(owners.owned(rows).sum()) + new)

    def shared(self, req: Req) -> int:
        """KV tokens of a request that a running stream has, so that it takes no memory for them."""
        page = int(self._scheduler.page_size)
        return page * shared_pages(self.pool, self._scheduler.tree_cache, req)

    @property
    def left(self) -> int:
        """Free tokens that the rest of a prompt under way leaves."""
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

    def adder(self, limits: AdmissionLimits) -> type:
        """Follows the device's memory, of which SGLang has pages beyond."""
        return placed_adder_class(limits, lambda: self.left, self.shared)

    # ---- streams leave and resume ---------------------------------------------------

    def undisturbed(self, req: Req) -> str | None:
        """What is resumed without a prefill is excluded, too."""
        return undisturbed_without_prefill(req) or super().undisturbed(req)

    def rejoined(self, running_batch: ReqBatch) -> Any:
        """Let paused streams that have their KV decode on, in the policy's order, if they fit."""
        scheduler, growth = self._scheduler, self.growth
        placed = {req for req in self.pauser.placed if req.to_finish is None}
        if not placed:
            return running_batch
        again: list[Any] = []
        left = self.left
        rows = int(scheduler.max_running_requests) - len(running_batch.reqs)
        for req in self.offered:
            if req not in placed:
                continue
            wanted = int(req.seqlen) + growth.headroom - self.shared(req)
            alone = not (again or running_batch.reqs or scheduler.chunked_req)
            if len(again) == rows or (wanted > left and not alone):
                break
            left -= wanted
            again.append(req)
        # What SGLang admits beside them is prompts, and what lost its KV.
        self.offered = [req for req in self.offered if req not in placed]
        if not again:
            return running_batch
        for req in again:
            self._goes_on(req)
        batch = decoding_again(scheduler, again)
        if running_batch.is_empty():
            return batch
        running_batch.merge_batch(batch)
        return running_batch

    def _goes_on(self, req: Req) -> None:
        row, tokens = int(req.kv.req_pool_idx), int(req.seqlen) - 1
        loaded = 0 if self.executor.is_resident(row) else tokens
        self.pauser.resume([req])
        self._book.runs(req)
        self._recorder.resumed(0, loaded, resident=tokens - loaded)
        trace(req, "resumed", recomputed=0, loaded=loaded)

    def drop(self, req: Req) -> None:
        """Give its row and its pages back, if it has them."""
        if req.kv.holds_kv:
            self.pauser.drop(req)

    @property
    def owners(self) -> list[Any]:
        """Draining streams, and paused ones with their KV."""
        return [*super().owners, *self.pauser.placed]

    # ---- a pass ---------------------------------------------------------------------

    def skips_decode(self, batch: ReqBatch, now: float) -> bool:
        """Where no page is free for the next tokens, paused streams lose theirs, the latest first.

        SGLang would retract streams that run, and end the last one.
        """
        if not batch.is_empty() and not batch.check_decode_mem():
            for req in sorted(self.pauser.placed, key=self._table.rank, reverse=True):
                self.pauser.give_up(req)
                if batch.check_decode_mem():
                    break
        return super().skips_decode(batch, now)

    def launched(self) -> None:
        """Layers of paused streams leave the device first."""
        rows = frozenset(int(req.kv.req_pool_idx) for req in self.pauser.placed)
        self.executor.plans.paused = rows

    def idle(self, *, ignore_waiting: bool) -> bool:
        """Paused streams have pages: the caches cannot be flushed before they end."""
        return super().idle(ignore_waiting=ignore_waiting) and not self.pauser.placed


def placed_body(
    scheduler: LiveScheduler,
    book: Book,
    memory: StreamMemory,
    extensions: Extensions,
    recorder: Recorder,
) -> PlacedBody:
    """The body of a server with layer-wise KV, with what pauses there; as of `UnifiedBody`."""
    pauser = PlacedPauser(scheduler.tree_cache, lambda req: None, book.pauses)
    return PlacedBody(scheduler, book, memory, pauser, extensions, recorder)
