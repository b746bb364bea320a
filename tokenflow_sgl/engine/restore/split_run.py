"""The one prefill of a scheduler whose layers are computed in several launches.

For SGLang its request is the one whose prompt is prefilled in part, and whose next chunk does not
fit yet: so an abort, a pause, a flush and its checks find it. It is the only one that is prefilled
meanwhile; streams go on decoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from sglang.srt.managers.overlap_utils import resolve_forward_inputs

from tokenflow_sgl.engine.restore.layered_prefills import LayeredPrefills
from tokenflow_sgl.engine.restore.restored_request import Restoration
from tokenflow_sgl.engine.restore.split_prefill import FinishingWorker, SplitPrefill
from tokenflow_sgl.engine.sglang.batch import ReqBatch
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.worker import LiveScheduler
from tokenflow_sgl.engine.shared_clock import local_time


class LaunchedSteps:
    """What the device has still to do.

    Attributes:
        end: Seconds on `local_time`, when all that was launched will have ended.
    """

    def __init__(self) -> None:
        self.end = 0.0

    def takes(self, seconds: float) -> None:
        """What was launched just now takes so long behind all else."""
        self.end = max(local_time(), self.end) + seconds


class SplitRun:
    """Carries a split prefill from its first launch to its last one.

    Args:
        scheduler: SGLang's.
        prefills: Say how far up its layers are computed.
        steps: Are told how long it takes.
    """

    def __init__(
        self, scheduler: LiveScheduler, prefills: LayeredPrefills, steps: LaunchedSteps
    ) -> None:
        self._scheduler = scheduler
        self._prefills = prefills
        self._steps = steps
        self._split: SplitPrefill | None = None
        self._finishing: SplitPrefill | None = None
        self._launched = False

    @property
    def under_way(self) -> bool:
        """Whether a prefill is split just now."""
        return self._split is not None

    def is_of(self, req: Req) -> bool:
        """Whether it is this request whose prefill is split just now."""
        return self._split is not None and req is self._split.request

    def begin(self, batch: ReqBatch, each: Restoration) -> None:
        """Split the prefill of a batch that SGLang has just made, of one restoration by layers."""
        fetch, page = each.layer_fetch, int(self._scheduler.page_size)
        split = self._split = SplitPrefill(batch, each, fetch.layers)
        self._scheduler.chunked_req = split.request
        split.request.skip_radix_cache_insert = True  # not before it has all of its layers
        tokens = split.gap // page * page
        host = each.operation.host_indices[:tokens].reshape(-1, page).flip(0).reshape(-1)
        fetch.by_layers.begin(host, batch.out_cache_loc[: split.gap], fetch.landed)

    def go_on(self) -> Any:
        """Launch what is due of it.

        Returns:
            The batch that finishes it when it is run next; None: not yet.
        """
        split = self._split
        assert split is not None, "it has begun"
        more = self._prefills.more_layers(split)
        if more is not None:
            if more:
                self._launch(split, more)
            return None
        self._steps.takes(self._prefills.seconds_left(split))
        self._prefills.finishes(split)
        self._end(split)
        self._finishing = split
        return split.batch

    def finishes(self, batch: ReqBatch | None) -> bool:
        """Whether a batch is the one whose lower layers are computed already."""
        return self._finishing is not None and batch is self._finishing.batch

    @contextmanager
    def running(self, batch: ReqBatch) -> Iterator[None]:
        """Surrounds the launch of a batch that finishes a split prefill: of the layers left."""
        scheduler, split = self._scheduler, self._finishing
        assert split is not None, "it finishes one"
        worker = scheduler.model_worker
        scheduler.model_worker = FinishingWorker(scheduler.tp_worker, split)
        try:
            yield
        finally:
            scheduler.model_worker = worker
            self._finishing = None  # SGLang decodes with the same object

    def computes_beside(self, batch: ReqBatch | None) -> bool:
        """Whether some layers were launched since this was asked last, or this batch has some."""
        launched, self._launched = self._launched, False
        return launched or self.finishes(batch)

    def end_copies(self) -> None:
        """Copy no more to its memory, which SGLang may take back."""
        if self._split is not None:
            self._split.restoration.copies.give_back()

    def break_off(self) -> None:
        """Forget it where SGLang has taken its memory back."""
        split, scheduler = self._split, self._scheduler
        if split is None or scheduler.chunked_req is split.request:
            return
        self._end(split)
        self._prefills.broken_off(split)
        if scheduler.enable_overlap:
            # The device may still read what this object has.
            scheduler.schedule_stream.wait_stream(scheduler.forward_stream)

    def _launch(self, split: SplitPrefill, more: int) -> None:
        scheduler = self._scheduler
        with ExitStack() as stack:
            if scheduler.enable_overlap:
                stack.enter_context(scheduler.forward_stream_ctx)
                scheduler.forward_stream.wait_stream(scheduler.schedule_stream)
            resolve_forward_inputs(split.batch, scheduler.future_map)
            split.compute(scheduler.tp_worker, more)
        if scheduler.enable_overlap:
            scheduler._apply_war_barrier()
        split.restoration.layer_fetch.first = split.computed
        self._launched = True
        self._steps.takes(self._prefills.seconds_of_layers(split, more))

    def _end(self, split: SplitPrefill) -> None:
        """Make the request of a split prefill an ordinary one again."""
        split.request.skip_radix_cache_insert = False
        self._split = None
        if self._scheduler.chunked_req is split.request:
            self._scheduler.chunked_req = None
