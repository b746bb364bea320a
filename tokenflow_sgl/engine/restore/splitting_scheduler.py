"""SGLang's loop with one prefill whose layers are computed in several launches.

For SGLang its request is the one whose prompt is prefilled in part, and whose next chunk does not
fit yet: so an abort, a pause, a flush and its checks find it. It is the only one that is prefilled
meanwhile; streams go on decoding.
"""

from __future__ import annotations

import contextlib
from typing import Any

from sglang.srt.managers.overlap_utils import resolve_forward_inputs
from sglang.srt.managers.schedule_batch import NextBatchPlan

from tokenflow_sgl.costs import Work
from tokenflow_sgl.engine.batch_work import work_of
from tokenflow_sgl.engine.restore.restorations import Restorations
from tokenflow_sgl.engine.restore.split_prefill import (
    FinishingWorker,
    SplitPrefill,
    is_finished_by,
    split_of,
)
from tokenflow_sgl.engine.shared_clock import local_time
from tokenflow_sgl.engine.telemetry.recording_scheduler import RecordingScheduler


class SplittingScheduler(RecordingScheduler):
    """Restorations by layers; subclasses say what else becomes of a request (`_tf_began`)."""

    # SGLang's own, which this class also assigns.
    chunked_req: Any
    is_mixed_chunk: bool
    model_worker: Any

    tf_restorations: Restorations | None = None
    tf_split: SplitPrefill | None = None
    tf_step_end = 0.0
    """When all that was launched will have ended."""
    tf_launched_layers = False
    """Whether some layers were launched in this pass, beside the step that SGLang launches."""

    def get_new_batch_prefill(self, running_batch: Any) -> Any:
        """Split a prefill that begins, or go on with one."""
        if self.tf_split is not None:
            return NextBatchPlan(
                batch_to_run=self._tf_go_on(self.tf_split), running_batch=running_batch
            )
        mixed = self.is_mixed_chunk
        try:
            plan = super().get_new_batch_prefill(running_batch)
        finally:
            self.is_mixed_chunk = mixed
        restorations = self.tf_restorations
        each = None if restorations is None else restorations.split_begun(plan.batch_to_run)
        if each is None:
            return plan
        assert restorations is not None
        batch, request, fetch = plan.batch_to_run, each.request, each.layer_fetch
        split = self.tf_split = SplitPrefill(batch, each, fetch.layers)
        self.chunked_req = request
        request.skip_radix_cache_insert = True  # not before it has all of its layers
        page, pages = int(self.page_size), split.gap // int(self.page_size)
        host = each.operation.host_indices[: pages * page].reshape(-1, page).flip(0).reshape(-1)
        fetch.by_layers.begin(host, batch.out_cache_loc[: split.gap], fetch.landed)
        self._tf_began(batch)
        return NextBatchPlan(batch_to_run=self._tf_go_on(split), running_batch=plan.running_batch)

    def _tf_began(self, batch: Any) -> None:
        """A prefill that is split has begun."""

    def _tf_go_on(self, split: SplitPrefill) -> Any:
        """Launch what is due of a split prefill.

        Returns:
            The batch that finishes it; None: not yet.
        """
        restorations = self.tf_restorations
        assert restorations is not None
        more = restorations.more_layers(split)
        if more == 0:
            return None
        if more is not None:
            self._tf_launch_layers(split, more)
            return None
        self._tf_takes(restorations.seconds_left(split))
        restorations.finishes(split)
        self._tf_end_split(split)
        is_finished_by(split.batch, split)
        return split.batch

    def run_batch(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Of a batch that finishes a split prefill, run the layers that are left."""
        split = split_of(batch)
        if split is None:
            return super().run_batch(batch, *args, **kwargs)
        worker, self.model_worker = self.model_worker, FinishingWorker(self.tp_worker, split)
        try:
            return super().run_batch(batch, *args, **kwargs)
        finally:
            self.model_worker = worker
            is_finished_by(batch, None)  # SGLang decodes with the same object

    def _tf_launch_layers(self, split: SplitPrefill, more: int) -> None:
        with contextlib.ExitStack() as stack:
            if self.enable_overlap:
                stack.enter_context(self.forward_stream_ctx)
                self.forward_stream.wait_stream(self.schedule_stream)
            resolve_forward_inputs(split.batch, self.future_map)
            split.compute(self.tp_worker, more)
        if self.enable_overlap:
            self._apply_war_barrier()
        split.restoration.layer_fetch.first = split.computed
        self.tf_launched_layers = True
        assert self.tf_restorations is not None
        self._tf_takes(self.tf_restorations.seconds_of_layers(split, more))

    def _tf_takes(self, seconds: float) -> None:
        """What was launched just now takes so long behind all else."""
        self.tf_step_end = max(local_time(), self.tf_step_end) + seconds

    def _tf_unmix(self) -> None:
        """The step that is made now has no decoding rows."""
        self.is_mixed_chunk = False

    def _tf_end_split(self, split: SplitPrefill) -> None:
        """Its request is an ordinary one again."""
        split.request.skip_radix_cache_insert = False
        self.tf_split = None
        if self.chunked_req is split.request:
            self.chunked_req = None

    def _tf_break_off(self) -> None:
        """Forget a split prefill whose memory SGLang has taken back."""
        split, restorations = self.tf_split, self.tf_restorations
        if split is None or self.chunked_req is split.request:
            return
        assert restorations is not None
        self._tf_end_split(split)
        restorations.broken_off(split)
        if self.enable_overlap:
            # The device may still read what this object has.
            self.schedule_stream.wait_stream(self.forward_stream)

    def _tf_work(self, batch: Any, *, crowded: bool, queued: bool = False) -> Work | None:
        """What the step that is launched teaches; None: it is not all that the device computes."""
        launched, self.tf_launched_layers = self.tf_launched_layers, False
        partly = launched or (batch is not None and split_of(batch) is not None)
        return None if partly else work_of(batch, crowded=crowded, queued=queued)

    # ---- what SGLang does to the request whose prompt is prefilled in part -----------------

    def stash_chunked_request(self, req: Any) -> None:
        """Leave one that is split as it is: its prefill goes on where it was."""
        if self.tf_split is None or req is not self.tf_split.request:
            super().stash_chunked_request(req)

    def process_pending_chunked_abort(self) -> None:
        """End copies to memory that goes back to SGLang."""
        split = self.tf_split
        if split is not None and self._pending_chunked_abort_req is split.request:
            split.restoration.copies.give_back()
        super().process_pending_chunked_abort()
        self._tf_break_off()

    def pause_generation(self, recv_req: Any) -> None:
        """End copies: what is paused may be retracted, and weights may change."""
        if self.tf_split is not None:
            self.tf_split.restoration.copies.give_back()
        super().pause_generation(recv_req)
        self._tf_break_off()
