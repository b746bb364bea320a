"""Restorations beside a scheduler, ours or SGLang's own: `--tokenflow-restore`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from sglang.srt.managers.schedule_batch import NextBatchPlan
from sglang.srt.mem_cache.common import checkpoint_kv_cache, release_kv_cache
from sglang.srt.plugins.hook_registry import HookType
from sglang.srt.runtime_context import get_parallel

from tokenflow_sgl.costs import StepCosts, Work
from tokenflow_sgl.costs.model import prefix_of
from tokenflow_sgl.engine.batch_work import work_of
from tokenflow_sgl.engine.config import restoring_planner
from tokenflow_sgl.engine.extension import Extension, Extensions, Host, Prefill
from tokenflow_sgl.engine.restore.leader_figures import LeaderFigures
from tokenflow_sgl.engine.restore.planners import make_planner
from tokenflow_sgl.engine.restore.restoration_record import RestorationRecord
from tokenflow_sgl.engine.restore.restorations import Restorations
from tokenflow_sgl.engine.restore.restore_adder import restoring_adder
from tokenflow_sgl.engine.restore.restore_hooks import attach_restorations, register_restorations
from tokenflow_sgl.engine.restore.restoring_ranks import UNKNOWN, RestoringRanks
from tokenflow_sgl.engine.restore.split_prefill import layers_of
from tokenflow_sgl.engine.restore.split_run import LaunchedSteps, SplitRun
from tokenflow_sgl.engine.restore.utilisation import Utilisation
from tokenflow_sgl.engine.sglang.batch import NextPlan, ReqBatch
from tokenflow_sgl.engine.sglang.hooking import hold
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.server import ServerArgs
from tokenflow_sgl.engine.sglang.worker import LiveScheduler
from tokenflow_sgl.engine.shared_clock import local_time
from tokenflow_sgl.engine.unsupported import check_prefill

_SCHEDULER = "sglang.srt.managers.scheduler:Scheduler"

Function = Callable[..., Any]

_KEPT = (
    "inflight_middle_chunks",
    "retraction_count",
    "is_retracted",
    "retracted_stain",
    "already_computed",
)
"""What a retraction changes of a request and a restoration does not: SGLang's chunks in flight, and
its accounting of what came from a cache."""


def register(server_args: ServerArgs) -> None:
    """Declare the hooks on SGLang, in the scheduler's process before it has a cache."""
    register_restorations()
    hold(
        f"{_SCHEDULER}._prefetch_kvcache",
        _prefetched,
        HookType.AROUND,
        "a fetch that begins may be one from the tail",
        ("req", "storage_hit_end"),
    )
    hold(
        f"{_SCHEDULER}._process_hicache_events",
        _looked_at,
        HookType.AROUND,
        "what has arrived decides what is computed next",
    )
    hold(
        f"{_SCHEDULER}.run_batch",
        _run,
        HookType.AROUND,
        "finishes a prefill whose lower layers are computed already",
        ("batch",),
    )
    hold(
        f"{_SCHEDULER}.stash_chunked_request",
        _stash,
        HookType.AROUND,
        "keeps KV that lacks layers out of the tree",
        ("req",),
    )
    hold(
        f"{_SCHEDULER}.process_pending_chunked_abort",
        _chunk_aborted,
        HookType.AROUND,
        "ends copies to memory that an aborted request gives back",
    )
    hold(
        f"{_SCHEDULER}.continue_generation",
        _continued,
        HookType.AROUND,
        "restores again",
        ("recv_req",),
    )
    hold(f"{_SCHEDULER}.flush_cache", _flushed, HookType.AROUND, "gives the memory of copies back")


def build(host: Host) -> RestoreExtension:
    """Restorations for a scheduler that has its caches, its model and its parts already.

    Raises:
        UnsupportedError: The model has switched chunked prefill off.
        ConfigError: There is no planner of the name that the options give.
    """
    scheduler = host.scheduler
    planner = restoring_planner(scheduler.server_args)
    check_prefill(scheduler.chunked_prefill_size)
    restorations = Restorations(
        scheduler.tree_cache,
        int(scheduler.chunked_prefill_size),
        make_planner(planner),
        RestorationRecord(host.recorder, host.log),
        scheduler._prefetch_kvcache,
        layers_of(scheduler),
        host.admission,
    )
    attach_restorations(scheduler.tree_cache, restorations)
    ranks = RestoringRanks(scheduler.tree_cache, get_parallel())
    return RestoreExtension(host, restorations, ranks)


class RestoreExtension(Extension):
    """Prefixes in HiCache's storage are computed from the head while their tail is fetched.

    Args:
        host: The scheduler.
        restorations: Those of this server.
        ranks: Decide together.
    """

    def __init__(self, host: Host, restorations: Restorations, ranks: RestoringRanks) -> None:
        self._host = host
        self._scheduler = host.scheduler
        self._restorations = restorations
        self._open = restorations.open
        self._ranks = ranks
        self._steps = LaunchedSteps()
        self._split = SplitRun(host.scheduler, restorations.layered, self._steps)
        self._utilisation = Utilisation(host.recorder)
        self._adders: dict[type, type] = {}
        self._measures = False  # whether there was a restoration when this pass began

    # ---- fetches begin --------------------------------------------------------------

    def prefetch_asked(self, req: Req) -> None:
        """A prefetch that SGLang has begun is one from the tail from now on."""
        if self._scheduler.enable_hicache_storage:
            self._restorations.watch(req)

    # ---- each pass ------------------------------------------------------------------

    def pass_begins(self, running_batch: ReqBatch) -> None:
        """What was begun and waits for its tail is not to wait for another request's end."""
        self._measures = self._open.any
        if self._measures:
            running_batch.batch_is_full = False

    def copies_looked_at(self) -> None:
        """What has arrived decides what is computed next."""
        scheduler, restorations = self._scheduler, self._restorations
        if not self._open.any:
            self._utilisation.rest()
            return
        chunk = int(scheduler.chunked_prefill_size)
        decoding = 2 * len(scheduler.running_batch.reqs) * int(scheduler.page_size)  # a step ahead
        req = scheduler.chunked_req
        measured = self._measured()
        restorations.begin_pass(measured, decoding + chunk, req)
        self._utilisation.look(measured.now, measured.step_end, restorations.rate.seconds)
        self._open.release_layers(self._ranks.least)
        if req is None or self._split.under_way or self._is_aborted(req):
            return
        if restorations.next_chunk(req) == 0:
            scheduler.chunked_req = None
            self._put_back(req)

    def prefill(self, running_batch: ReqBatch, choose: Prefill) -> Any:
        """Go on with a prefill that is split, or split the one that is chosen."""
        if self._split.under_way:
            return NextBatchPlan(batch_to_run=self._split.go_on(), running_batch=running_batch)
        mixed = self._scheduler.is_mixed_chunk
        try:
            plan = choose(running_batch)
        finally:
            self._scheduler.is_mixed_chunk = mixed
        each = self._restorations.layered.begun(plan.batch_to_run)
        if each is None:
            return plan
        self._split.begin(plan.batch_to_run, each)
        self._host.prefill_began(plan.batch_to_run)
        return NextBatchPlan(batch_to_run=self._split.go_on(), running_batch=plan.running_batch)

    def wrap_adder(self, adder: type) -> type:
        """The adder like this one whose chunks end where the tail begins; the same each time."""
        if adder not in self._adders:
            align = self._scheduler.truncation_align_size
            self._adders[adder] = restoring_adder(adder, self._restorations, align, self._unmix)
        return self._adders[adder]

    def launched(self, plan: NextPlan) -> None:
        """Note when the step that is launched will have ended."""
        batch = plan.batch_to_run
        if self._measures and not self._split.finishes(batch):
            work = work_of(batch, crowded=False)
            self._steps.takes(seconds_of(work, self._host.costs()))

    def running(self, batch: ReqBatch) -> AbstractContextManager[None]:
        """Run the layers that are left, of a batch that finishes a split prefill."""
        if self._split.finishes(batch):
            return self._split.running(batch)
        return contextlib.nullcontext()

    def computes_beside(self, batch: ReqBatch | None) -> bool:
        """Whether layers of a split prefill were launched, or are left, beside this step."""
        return self._split.computes_beside(batch)

    # ---- what SGLang does to the request whose prompt is prefilled in part -----------------

    def keeps_chunk(self, req: Req) -> bool:
        """One that is split goes on where it was."""
        return self._split.is_of(req)

    def has_its_memory(self, req: Req) -> bool:
        """One that is split had all of it from the beginning."""
        return self._split.is_of(req)

    @contextmanager
    def chunk_aborts(self) -> Iterator[None]:
        """End copies to memory that goes back to SGLang."""
        if self._split.is_of(self._scheduler._pending_chunked_abort_req):
            self._split.end_copies()
        yield
        self._split.break_off()

    @contextmanager
    def engine_pauses(self) -> Iterator[None]:
        """End copies, as requests may be retracted and weights change, and keep no tails."""
        self._split.end_copies()
        yield
        self._split.break_off()
        self._open.pause()

    def while_paused(self) -> None:
        """Go on to give host memory back: a flush waits for it."""
        self._open.release_layers(self._ranks.least)

    def engine_continues(self) -> None:
        """Go on with restorations after a pause of the engine."""
        self._open.go_on()

    # ---- memory ---------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """A fetch is work until SGLang's threads have ended it, also one that was dropped."""
        return not self._open.busy

    def flushes(self) -> None:
        """Hold no device memory: all of it is free after a flush."""
        self._restorations.copy_memory.give_back()

    @property
    def lent(self) -> Sequence[Any]:
        """The device memory of copies of tails."""
        return self._restorations.copy_memory.held

    @property
    def lent_tokens(self) -> int:
        """The device memory of copies of tails, in tokens."""
        return self._restorations.copy_memory.held_tokens

    # ---- parts ----------------------------------------------------------------------

    def _measured(self) -> LeaderFigures:
        """The leader's figures, on all ranks."""
        costs, rate = self._host.costs(), self._restorations.rate.rate
        now, rate, step_end, shortest, *prefill = self._ranks.leaders(
            [
                local_time(),
                UNKNOWN if math.isnan(rate) else rate,
                self._steps.end,
                costs.decode_seconds(1, 0),
                *(costs.prefill or (UNKNOWN,) * 3),
            ]
        )
        known = prefill[0] != UNKNOWN
        return LeaderFigures(
            now,
            math.nan if rate == UNKNOWN else rate,
            step_end,
            (prefill[0], prefill[1], prefill[2]) if known else None,
            shortest,
        )

    def _is_aborted(self, req: Req) -> bool:
        """Whether SGLang is about to end a request whose prompt is prefilled in part."""
        return req is self._scheduler._pending_chunked_abort_req or req.to_finish is not None

    def _put_back(self, req: Req) -> None:
        """A request's head is computed, its last chunk may still run: it waits for its tail.

        Its row is free, its KV in the prefix tree. What SGLang counts of chunks in flight stays.
        """
        tree = self._scheduler.tree_cache
        checkpoint_kv_cache(req, tree)
        release_kv_cache(req, tree, checkpoint=False)
        kept = {name: getattr(req, name) for name in _KEPT}
        req.reset_for_retract()
        for name, value in kept.items():
            setattr(req, name, value)
        self._host.requeue(req)

    def _unmix(self) -> None:
        """The step that is made now has no decoding rows."""
        self._scheduler.is_mixed_chunk = False


def seconds_of(work: Work | None, costs: StepCosts) -> float:
    """Seconds that a step with this work takes; 0.0 while unknown."""
    if work is None:
        return 0.0
    if not work.tokens:
        return costs.decode_seconds(work.decoding, work.context)
    return costs.prefill_seconds(work.tokens, prefix_of(work.tokens, work.attention))


# ---- hooks on the scheduler that it is beside ---------------------------------------


class _Ours(Protocol):
    """What a shell has for us."""

    extensions: Extensions


class _Extended(LiveScheduler, Protocol):
    """A scheduler that has extensions beside it."""

    tokenflow: _Ours


def _of(scheduler: _Extended) -> RestoreExtension:
    found: RestoreExtension = scheduler.tokenflow.extensions.get(RestoreExtension)
    return found


def _prefetched(
    original: Function, scheduler: _Extended, req: Req, *args: Any, **kwargs: Any
) -> Any:
    said = original(scheduler, req, *args, **kwargs)
    _of(scheduler).prefetch_asked(req)
    return said


def _looked_at(original: Function, scheduler: _Extended, *args: Any, **kwargs: Any) -> None:
    original(scheduler, *args, **kwargs)
    _of(scheduler).copies_looked_at()


def _run(
    original: Function, scheduler: _Extended, batch: ReqBatch, *args: Any, **kwargs: Any
) -> Any:
    with _of(scheduler).running(batch):
        return original(scheduler, batch, *args, **kwargs)


def _stash(original: Function, scheduler: _Extended, req: Req) -> None:
    if not _of(scheduler).keeps_chunk(req):
        original(scheduler, req)


def _chunk_aborted(original: Function, scheduler: _Extended) -> None:
    with _of(scheduler).chunk_aborts():
        original(scheduler)


def _continued(original: Function, scheduler: _Extended, recv_req: Any) -> None:
    original(scheduler, recv_req)
    _of(scheduler).engine_continues()


def _flushed(original: Function, scheduler: _Extended, *args: Any, **kwargs: Any) -> Any:
    if scheduler.is_fully_idle(ignore_waiting=scheduler._engine_paused):  # else it is refused
        _of(scheduler).flushes()
    return original(scheduler, *args, **kwargs)
