"""A scheduler that only pretends, with restorations beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from tokenflow_sgl.costs import LatestRate, StepCosts
from tokenflow_sgl.engine.config import RESTORE_ATTRIBUTE
from tokenflow_sgl.engine.extension import Extensions
from tokenflow_sgl.engine.restore.planners import make_planner
from tokenflow_sgl.engine.restore.restoration_record import RestorationRecord
from tokenflow_sgl.engine.restore.restorations import Restorations
from tokenflow_sgl.engine.restore.restore_extension import RestoreExtension
from tokenflow_sgl.engine.restore.restoring_ranks import RestoringRanks
from tokenflow_sgl.engine.telemetry.prometheus import Recorder

CHUNK = 64
"""Tokens of a prefill step."""
ALONE = SimpleNamespace(attn_tp_size=1, attn_cp_size=1, attn_tp_rank=0, attn_cp_rank=0)
"""SGLang's state of the ranks of a process that has no others."""


class Scheduler:
    """As much of SGLang's as restorations look at, and keeps what it is told."""

    chunked_prefill_size = CHUNK
    enable_hicache_storage = True
    enable_overlap = False
    truncation_align_size = None

    def __init__(self, tree: Any) -> None:
        self.tree_cache = tree
        self.page_size = int(tree.page_size)
        self.running_batch: Any = SimpleNamespace(reqs=[], batch_is_full=False)
        self.is_mixed_chunk = False
        self.chunked_req: Any = None
        self._pending_chunked_abort_req: Any = None
        self.tp_worker: Any = None
        self.model_worker: Any = None
        self.future_map: Any = None
        self.server_args = SimpleNamespace(**{RESTORE_ATTRIBUTE: "auto"})
        self.tokenflow: Any = None


class Host:
    """That scheduler, as its extensions see it: it is what SGLang's has of ours."""

    log = table = None

    def __init__(self, scheduler: Any, costs: StepCosts | None = None) -> None:
        self.scheduler = scheduler
        scheduler.tokenflow = self
        self.recorder = Recorder()
        self.extensions = Extensions()
        self.began: list[Any] = []
        self.requeued: list[Any] = []
        self._costs = costs or StepCosts()

    def costs(self) -> StepCosts:
        return self._costs

    def admission(self) -> Sequence[Any] | None:
        return None

    def prefill_began(self, batch: Any) -> None:
        self.began.append(batch)

    def requeue(self, req: Any) -> None:
        self.requeued.append(req)


def restorations_with(tree: Any, fetch_again: Callable[..., object] = lambda req: None) -> Any:
    """Restorations beside a tree."""
    record = RestorationRecord(Recorder(), None)
    return Restorations(tree, CHUNK, make_planner("auto"), record, fetch_again)


def extension_beside(host: Host, restorations: Any) -> RestoreExtension:
    """The extension, on one rank."""
    ranks = RestoringRanks(host.scheduler.tree_cache, ALONE)
    made = RestoreExtension(host, restorations, ranks)
    host.extensions.add(made)
    return made


class Worker:
    """SGLang's; notes how many layers it is asked to launch."""

    def __init__(self) -> None:
        self.layers: list[int] = []
        self.model_runner: Any = SimpleNamespace(forward=self._forward, sample=lambda *_: "token")

    def set_hicache_consumer(self, index: int) -> None: ...

    def _forward(self, forward: Any, *, split_forward_count: int, **_: Any) -> Any:
        self.layers.append(split_forward_count)
        return SimpleNamespace(logits_output="logits", can_run_graph=False)


class Layered:
    """Restorations of which one is by layers: its prefill is split as a test says.

    Args:
        due: Layers that are computed next, in turn; then it is finished.
    """

    any = True

    def __init__(self, each: Any, due: Sequence[int]) -> None:
        self.each, self.due = each, list(due)
        self.open = self.layered = self  # all that is asked of its parts
        self.finished: list[Any] = []
        self.broken: list[Any] = []
        self.paused = False
        self.rate = LatestRate()

    def begun(self, batch: Any) -> Any:
        return self.each if batch is not None else None

    def more_layers(self, split: Any) -> int | None:
        return self.due.pop(0) if self.due else None

    def seconds_of_layers(self, split: Any, layers: int) -> float:
        return float(layers)

    def seconds_left(self, split: Any) -> float:
        return 100.0

    def finishes(self, split: Any) -> None:
        self.finished.append(split)

    def broken_off(self, split: Any) -> None:
        self.broken.append(split)

    def pause(self) -> None:
        self.paused = True
