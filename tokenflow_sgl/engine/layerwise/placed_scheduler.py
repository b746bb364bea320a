"""`--scheduler tokenflow` where KV is placed layer by layer: paused streams keep their KV.

As in `engine.scheduler` each method calls SGLang's own and adds one thing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.engine.layerwise.layer_report import LayerReport
from tokenflow_sgl.engine.layerwise.placed_actuator import PlacedActuator
from tokenflow_sgl.engine.layerwise.placed_adder import placed_adder_class
from tokenflow_sgl.engine.layerwise.placed_pauser import PlacedPauser, decoding_again
from tokenflow_sgl.engine.scheduler import TokenFlowScheduler
from tokenflow_sgl.engine.telemetry.applied import trace
from tokenflow_sgl.engine.unsupported import undisturbed_without_prefill
from tokenflow_sgl.engine.view import View

LOOKED_STEPS = 64
"""After so many steps the leader says anew what a step carries."""


class TokenFlowPlacedScheduler(TokenFlowScheduler):
    """What `--scheduler tokenflow` puts in place with `--tokenflow-layerwise`."""

    tf_pauser: PlacedPauser
    tf_actuator: PlacedActuator
    tf_looked = 0
    """Steps that there had been when the leader last looked at what they carry."""
    tf_carried = 0
    tf_without_hicache = "off (paused KV is placed layer by layer)"

    def init_schedule_policy(self) -> None:
        """Build the policy, and what pauses and resumes here."""
        super().init_schedule_policy()
        self.tf_pauser = PlacedPauser(self.tree_cache, lambda req: None, self._tf_paused)
        self.tf_actuator = PlacedActuator(
            self, self.tf_table, self.tf_pauser, self.tf_writer, self.tf_loader
        )
        self.tf_view = View(
            self, self.tf_table, self.tf_actuator, self.tf_clock, self.tf_timer, self.tf_transfers
        )
        self.tf_clock.host_total = self._tf_host_tokens()  # before the leader's first word
        body = self.tf_actuator
        self.tf_layer_report = LayerReport(body.executor, int(self.page_size), self.tf_recorder)
        self.tf_adder = placed_adder_class(self.tf_limits, lambda: body.left, body.shared)

    def _tf_host_tokens(self) -> int:
        """Of SGLang's pages those that no step carries without taking longer.

        The leader measures, and its clock tells all ranks.
        """
        executor = self.tf_actuator.executor
        if not self.tf_carried or executor.steps - self.tf_looked >= LOOKED_STEPS:
            self.tf_looked = executor.steps
            self.tf_carried = executor.pages_at_once * int(self.page_size)
        return max(int(self.max_total_num_tokens) - self.tf_carried, 0)

    def _tf_owners(self) -> list[Any]:
        return [*super()._tf_owners(), *self.tf_pauser.placed]

    def _tf_undisturbed(self, req: Any) -> str | None:
        return undisturbed_without_prefill(req) or super()._tf_undisturbed(req)

    # ---- one iteration --------------------------------------------------------------

    def _tf_launched(self, plan: Any) -> None:
        """Layers of paused streams leave the device first."""
        rows = frozenset(int(req.kv.req_pool_idx) for req in self.tf_pauser.placed)
        self.tf_actuator.executor.plans.paused = rows
        self.tf_layer_report.look()
        super()._tf_launched(plan)

    def _tf_rejoined(self, running_batch: Any) -> Any:
        """Those that have their KV decode on, in the policy's order, as far as they fit."""
        body, pauser = self.tf_actuator, self.tf_pauser
        placed = {req for req in pauser.placed if req.to_finish is None}
        if not placed:
            return running_batch
        again: list[Any] = []
        left = body.left
        rows = int(self.max_running_requests) - len(running_batch.reqs)
        for req in body.offered:
            if req not in placed:
                continue
            wanted = int(req.seqlen) + body.growth.headroom - body.shared(req)
            alone = not (again or running_batch.reqs or self.chunked_req)
            if len(again) == rows or (wanted > left and not alone):
                break
            left -= wanted
            again.append(req)
        # What SGLang admits beside them is prompts, and what lost its KV.
        body.offered = [req for req in body.offered if req not in placed]
        if not again:
            return running_batch
        for req in again:
            self._tf_goes_on(req)
        batch = decoding_again(self, again)
        if running_batch.is_empty():
            return batch
        running_batch.merge_batch(batch)
        return running_batch

    def _tf_goes_on(self, req: Any) -> None:
        row, tokens = int(req.kv.req_pool_idx), int(req.seqlen) - 1
        loaded = 0 if self.tf_actuator.executor.is_resident(row) else tokens
        self.tf_pauser.resume([req])
        self.tf_paused_time.end(req)
        self.tf_table.move(req, Phase.RUNNING, self.tf_clock.now)
        self.tf_recorder.resumed(0, loaded, resident=tokens - loaded)
        trace(req, "resumed", recomputed=0, loaded=loaded)

    def update_running_batch(self, batch: Any) -> Any:
        """Where no page is free for the next tokens, paused streams lose theirs, the latest first.

        SGLang would retract streams that run, and end the last one.
        """
        if not batch.is_empty() and not batch.check_decode_mem():
            for req in sorted(self.tf_pauser.placed, key=self.tf_table.rank, reverse=True):
                self.tf_pauser.give_up(req)
                if batch.check_decode_mem():
                    break
        return super().update_running_batch(batch)

    # ---- requests end, and the engine is paused -------------------------------------

    def _tf_end_aborted(self, among: Iterable[Any]) -> None:
        """Paused streams that were aborted give their rows and their pages back."""
        ended, paused = list(among), self.tf_pauser.paused
        for req in ended:
            if req in paused and req.to_finish is not None and req.kv.holds_kv:
                self.tf_pauser.drop(req)
        super()._tf_end_aborted(ended)

    def is_fully_idle(self, for_health_check: bool = False, ignore_waiting: bool = False) -> bool:
        """Paused streams have pages: the caches cannot be flushed before they end."""
        idle = super().is_fully_idle(for_health_check, ignore_waiting)
        return idle and not self.tf_pauser.placed
