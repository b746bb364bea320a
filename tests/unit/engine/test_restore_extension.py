"""What restorations do at each moment of a scheduler that only pretends."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.sglang import Request
from restored_tree import Tree, allocate, begin
from restoring_host import (
    ALONE,
    CHUNK,
    Host,
    Layered,
    Scheduler,
    Worker,
    extension_beside,
    restorations_with,
)
from sglang.srt.plugins.hook_registry import HookType

from tokenflow_sgl.costs import StepCosts, Work
from tokenflow_sgl.engine.config import RESTORE_ATTRIBUTE
from tokenflow_sgl.engine.refusal import UnsupportedError
from tokenflow_sgl.engine.restore import restore_extension, split_prefill, split_run
from tokenflow_sgl.engine.restore.restoring_ranks import RestoringRanks
from tokenflow_sgl.engine.restore.split_prefill import FinishingWorker
from tokenflow_sgl.policy.config import ConfigError

LAYERS, STORED, PROMPT = 6, 32, 48


class Split:
    """A scheduler of which the next prefill is split as `due` says; see `Layered`."""

    def __init__(self, *due: int) -> None:
        self.now = 10.0
        self.copied: list[str] = []
        by_layers = SimpleNamespace(begin=lambda *_: self.copied.append("begun"))
        self.request = Request(skip_radix_cache_insert=False, to_finish=None)
        self.each: Any = SimpleNamespace(
            request=self.request,
            end=STORED,
            layer_fetch=SimpleNamespace(layers=LAYERS, landed=0, first=0, by_layers=by_layers),
            operation=SimpleNamespace(host_indices=torch.arange(STORED)),
            copies=SimpleNamespace(give_back=lambda: self.copied.append("ended")),
        )
        self.batch = SimpleNamespace(
            reqs=[self.request],
            prefix_lens=[0],
            extend_lens=[PROMPT],
            out_cache_loc=torch.arange(PROMPT),
            hicache_consumer_index=-1,
            sampling_info=None,
        )
        self.running_batch = SimpleNamespace(reqs=[], batch_is_full=True)
        self.scheduler = Scheduler(Tree())
        self.scheduler.tp_worker = self.worker = Worker()
        self.scheduler.model_worker = "SGLang's"
        self.host, self.all = Host(self.scheduler), Layered(self.each, due)
        self.extension = extension_beside(self.host, self.all)
        self.chosen, self.beside = 0, False

    def choose(self, running_batch: Any) -> Any:
        self.chosen += 1
        return SimpleNamespace(batch_to_run=self.batch, running_batch=running_batch)

    def turn(self) -> Any:
        """The batch of the next pass."""
        self.extension.pass_begins(self.running_batch)
        plan = self.extension.prefill(self.running_batch, self.choose)
        assert plan.running_batch is self.running_batch
        self.extension.launched(plan)
        self.beside = self.extension.computes_beside(plan.batch_to_run)
        return plan.batch_to_run


@pytest.fixture
def split(monkeypatch) -> Any:
    def made(*due: int) -> Split:
        one = Split(*due)
        monkeypatch.setattr(split_prefill, "_forward_of", lambda *_: SimpleNamespace())
        monkeypatch.setattr(split_run, "resolve_forward_inputs", lambda *_: None)
        monkeypatch.setattr(split_run, "local_time", lambda: one.now)
        monkeypatch.setattr(restore_extension, "work_of", lambda batch, crowded: None)
        return one

    return made


def test_layers_are_launched_beside_steps_until_the_rest_is_a_step(split) -> None:
    one = split(2, 0, 1)
    assert one.turn() is None
    assert (one.chosen, one.host.began) == (1, [one.batch])
    assert one.copied == ["begun"]
    assert one.request.skip_radix_cache_insert, "the tree never has KV that lacks layers"
    assert one.scheduler.chunked_req is one.request
    assert one.extension.keeps_chunk(one.request)
    assert one.extension.has_its_memory(one.request)
    assert not one.extension.keeps_chunk(Request())
    assert one.beside
    assert one.running_batch.batch_is_full is False

    assert one.turn() is None
    assert not one.beside, "no layer was due"
    assert one.turn() is None
    assert one.beside
    assert one.worker.layers == [2, 1]
    assert one.each.layer_fetch.first == 3
    assert one.turn() is one.batch
    assert one.chosen == 1, "nothing else is prefilled meanwhile"
    assert one.beside, "the step has the upper layers only"
    assert one.scheduler.chunked_req is None
    assert not one.request.skip_radix_cache_insert
    assert not one.extension.keeps_chunk(one.request)


def test_the_step_that_finishes_runs_the_layers_that_are_left(split) -> None:
    one = split(2)
    one.turn()
    assert one.turn() is one.batch
    with one.extension.running(SimpleNamespace()):
        assert one.scheduler.model_worker == "SGLang's", "another batch"
    with one.extension.running(one.batch):
        worker = one.scheduler.model_worker
        assert isinstance(worker, FinishingWorker)
        assert worker.forward_batch_generation(one.batch).next_token_ids == "token"
    assert one.scheduler.model_worker == "SGLang's"
    assert one.worker.layers == [2, LAYERS - 2]
    with one.extension.running(one.batch):
        assert one.scheduler.model_worker == "SGLang's", "it decodes from here on"
    assert not one.extension.computes_beside(one.batch)


def test_a_step_that_fails_leaves_sglangs_worker_in_place(split) -> None:
    one = split()
    assert one.turn() is one.batch
    with pytest.raises(ZeroDivisionError), one.extension.running(one.batch):
        raise ZeroDivisionError
    assert one.scheduler.model_worker == "SGLang's"


def test_what_was_launched_ends_when_all_of_it_has(split) -> None:
    one = split(2)
    one.turn()
    assert one.extension._measured().step_end == 12.0
    one.turn()
    assert one.extension._measured().step_end == 112.0, "told once, not as a whole prefill again"


def test_a_step_is_mixed_or_not_for_itself_only(split) -> None:
    one = split()
    one.scheduler.is_mixed_chunk = True

    def unmixed(running_batch: Any) -> Any:
        one.extension._unmix()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        one.extension.prefill(one.running_batch, unmixed)
    assert one.scheduler.is_mixed_chunk


@pytest.mark.parametrize("taken", [True, False])
def test_an_abort_of_a_split_prefill_ends_its_copies_first(split, taken) -> None:
    one = split(2, 2)
    one.turn()
    one.scheduler._pending_chunked_abort_req = one.request
    with one.extension.chunk_aborts():
        assert one.copied == ["begun", "ended"]
        if taken:
            one.scheduler.chunked_req = None
    assert bool(one.all.broken) is taken, "else SGLang has not ended it yet"
    assert one.extension.keeps_chunk(one.request) is not taken
    assert one.request.skip_radix_cache_insert is not taken


def test_anothers_abort_ends_no_copies(split) -> None:
    one = split(2, 2)
    one.turn()
    one.scheduler._pending_chunked_abort_req = Request()
    with one.extension.chunk_aborts():
        pass
    assert one.copied == ["begun"]
    assert one.all.broken == []


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_a_pause_ends_copies_and_keeps_no_tails(split, mode) -> None:
    one = split(2, 2)
    one.turn()
    with one.extension.engine_pauses():
        assert one.copied == ["begun", "ended"]
        assert not one.all.paused
        if mode == "retract":
            one.scheduler.chunked_req = None
    assert one.all.paused
    assert bool(one.all.broken) is (mode == "retract")


# ---- a request whose head is computed -----------------------------------------------


@pytest.fixture
def restoring(monkeypatch) -> Any:
    """One request whose fetch has brought nothing yet."""
    where = "tokenflow_sgl.engine.restore.restorable.undisturbed_reason"
    monkeypatch.setattr(where, lambda request: None)
    tree = Tree()
    host, restorations = Host(Scheduler(tree)), restorations_with(tree)
    request = begin(restorations, tree, "r")
    request.to_finish = None
    allocate(tree, "r")
    made = SimpleNamespace(tree=tree, host=host, request=request, all=restorations)
    made.scheduler = host.scheduler
    made.extension = extension_beside(host, restorations)
    return made


def test_a_head_that_is_computed_far_enough_waits_for_its_tail(restoring, monkeypatch) -> None:
    ended: list[Any] = []
    monkeypatch.setattr(restore_extension, "checkpoint_kv_cache", lambda *told: ended.append(told))
    monkeypatch.setattr(restore_extension, "release_kv_cache", lambda *_, checkpoint: None)
    request, scheduler = restoring.request, restoring.scheduler
    vars(request).update(
        extend_end=CHUNK, inflight_middle_chunks=1, retraction_count=0, is_retracted=False
    )
    vars(request).update(retracted_stain=False, already_computed=CHUNK)

    def retracted() -> None:
        vars(request).update(inflight_middle_chunks=0, retraction_count=1, is_retracted=True)
        vars(request).update(retracted_stain=True, already_computed=0)

    request.reset_for_retract = retracted
    monkeypatch.setattr(restoring.all, "next_chunk", lambda req: 0)
    scheduler.chunked_req = scheduler._pending_chunked_abort_req = request
    restoring.extension.copies_looked_at()
    assert restoring.host.requeued == [], "it is about to be ended"
    scheduler._pending_chunked_abort_req = None
    restoring.extension.copies_looked_at()
    assert restoring.host.requeued == [request]
    assert scheduler.chunked_req is None
    assert ended == [(request, restoring.tree)]
    assert (request.inflight_middle_chunks, request.already_computed) == (1, CHUNK)
    assert (request.retraction_count, request.is_retracted, request.retracted_stain) == (0, 0, 0)


def test_prefetches_are_watched_where_there_is_a_storage(restoring, monkeypatch) -> None:
    watched: list[Any] = []
    monkeypatch.setattr(restoring.all, "watch", watched.append)
    restoring.extension.prefetch_asked("a")
    restoring.scheduler.enable_hicache_storage = False
    restoring.extension.prefetch_asked("b")
    assert watched == ["a"]


def test_memory_of_copies_is_lent_until_a_flush(restoring) -> None:
    extension, copies = restoring.extension, restoring.all.open.get("r").copies
    copies._slots = [1, 2, 3]
    copies._free = lambda slots: None
    assert (extension.lent, extension.lent_tokens) == ([[1, 2, 3]], 3)
    extension.flushes()
    assert (extension.lent, extension.lent_tokens) == ([], 0)


def test_a_pause_ends_when_the_engine_goes_on(restoring) -> None:
    extension, open_ = restoring.extension, restoring.all.open
    with extension.engine_pauses():
        assert open_.any
    assert not open_.any
    extension.while_paused()
    for kept in (False, True):
        begin(restoring.all, restoring.tree, "r")
        assert open_.keeps(allocate(restoring.tree, "r"))
        assert open_.any is kept
        extension.engine_continues()


def test_the_adder_is_made_once(restoring) -> None:
    class Adder: ...

    made = restoring.extension.wrap_adder(Adder)
    assert issubclass(made, Adder)
    assert restoring.extension.wrap_adder(Adder) is made
    assert restoring.extension.wrap_adder(made) is not made


def test_a_step_takes_what_the_host_has_learned() -> None:
    costs = StepCosts(prefill=(0.1, 0.001, 0.0), decode=(0.01, 0.0, 0.0))
    assert restore_extension.seconds_of(None, costs) == 0.0
    prefill = Work(tokens=100, attention=5000.0)
    assert restore_extension.seconds_of(prefill, costs) == pytest.approx(0.2)
    assert restore_extension.seconds_of(Work(decoding=1), costs) == costs.decode_seconds(1, 0)


def test_restorations_need_chunks() -> None:
    scheduler = Scheduler(Tree())
    scheduler.chunked_prefill_size = -1
    with pytest.raises(UnsupportedError, match="chunked prefill"):
        restore_extension.build(Host(scheduler))


@pytest.mark.parametrize("planner", ["", "nothing.here:Planner"])
def test_a_planner_that_is_not_there_is_refused(planner) -> None:
    scheduler = Scheduler(Tree())
    setattr(scheduler.server_args, RESTORE_ATTRIBUTE, planner)
    scheduler._prefetch_kvcache = lambda req: None
    with pytest.raises(ConfigError, match="restore"):
        restore_extension.build(Host(scheduler))


# ---- hooks on SGLang's scheduler ----------------------------------------------------


@pytest.fixture
def hooks(monkeypatch) -> dict[str, Any]:
    """By the name of SGLang's method: the hook that is declared around it."""
    held: dict[str, Any] = {}

    def hold(target: str, hook: Any, kind: HookType, *_said: Any) -> None:
        module, _, path = target.partition(":")
        cls, _, name = path.partition(".")
        assert (cls, kind) == ("Scheduler", HookType.AROUND)
        assert callable(getattr(getattr(sys.modules[module], cls), name))
        held[name] = hook

    monkeypatch.setattr(restore_extension, "hold", hold)
    monkeypatch.setattr(restore_extension, "register_restorations", lambda: None)
    restore_extension.register(None)
    return held


def test_seven_methods_of_sglangs_scheduler_are_hooked(hooks) -> None:
    assert set(hooks) == {
        "_prefetch_kvcache",
        "_process_hicache_events",
        "run_batch",
        "stash_chunked_request",
        "process_pending_chunked_abort",
        "continue_generation",
        "flush_cache",
    }


def test_a_scheduler_without_restorations_beside_it_has_no_hooks_on_it(hooks) -> None:
    """They are declared only where the extension is built: a wrong order shows at once."""
    host = Host(Scheduler(Tree()))
    with pytest.raises(LookupError, match="no RestoreExtension"):
        hooks["continue_generation"](lambda *_: None, host.scheduler, None)


def test_a_prefetch_is_watched_once_sglang_has_begun_it(hooks, restoring, monkeypatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(restoring.all, "watch", lambda req: done.append(f"watched {req}"))

    def sglangs(scheduler: Any, req: Any, *, more: int) -> str:
        done.append("begun")
        return f"{req} {more}"

    assert hooks["_prefetch_kvcache"](sglangs, restoring.scheduler, "r", more=3) == "r 3"
    assert done == ["begun", "watched r"]


def test_what_has_arrived_counts_in_the_pass_in_which_sglang_sees_it(
    hooks, restoring, monkeypatch
) -> None:
    monkeypatch.setattr(restoring.all, "next_chunk", lambda req: 0)
    put_back: list[Any] = []
    monkeypatch.setattr(restoring.extension, "_put_back", put_back.append)

    def sglangs(scheduler: Any) -> None:
        scheduler.chunked_req = restoring.request

    hooks["_process_hicache_events"](sglangs, restoring.scheduler)
    assert put_back == [restoring.request]


def test_the_layers_that_are_left_run_in_sglangs_step(hooks, split) -> None:
    one = split(2)
    one.turn()
    assert one.turn() is one.batch

    def sglangs(scheduler: Any, batch: Any, more: int) -> Any:
        return type(scheduler.model_worker), more

    assert hooks["run_batch"](sglangs, one.scheduler, one.batch, 3) == (FinishingWorker, 3)
    assert hooks["run_batch"](sglangs, one.scheduler, SimpleNamespace(), more=4) == (str, 4)


def test_the_chunk_of_a_split_prefill_is_kept_and_any_other_stashed(hooks, split) -> None:
    one, stashed = split(2, 2), []
    one.turn()

    def sglangs(scheduler: Any, req: Any) -> None:
        stashed.append(req)

    hooks["stash_chunked_request"](sglangs, one.scheduler, one.request)
    hooks["stash_chunked_request"](sglangs, one.scheduler, other := Request())
    assert stashed == [other]


def test_copies_end_before_sglang_ends_a_chunk_and_the_split_behind_it(hooks, split) -> None:
    one = split(2, 2)
    one.turn()
    one.scheduler._pending_chunked_abort_req = one.request

    def sglangs(scheduler: Any) -> None:
        assert one.copied == ["begun", "ended"]
        assert one.all.broken == []
        scheduler.chunked_req = None

    hooks["process_pending_chunked_abort"](sglangs, one.scheduler)
    assert len(one.all.broken) == 1


def test_restorations_go_on_behind_the_engine(hooks, restoring, monkeypatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(restoring.all.open, "go_on", lambda: done.append("restorations"))

    def sglangs(scheduler: Any, message: str) -> None:
        done.append(message)

    hooks["continue_generation"](sglangs, restoring.scheduler, "engine")
    assert done == ["engine", "restorations"]


@pytest.mark.parametrize("paused", [True, False])
@pytest.mark.parametrize("idle", [True, False])
def test_memory_is_given_back_before_a_flush_that_is_not_refused(
    hooks, restoring, idle, paused
) -> None:
    extension, copies = restoring.extension, restoring.all.open.get("r").copies
    scheduler, given = restoring.scheduler, []
    copies._slots, copies._free = [1, 2, 3], given.append
    scheduler._engine_paused, asked = paused, []

    def is_fully_idle(*, ignore_waiting: bool) -> bool:
        asked.append(ignore_waiting)
        return idle

    def sglangs(scheduler: Any, *, empty_cache: bool) -> tuple[bool, int]:
        return empty_cache, extension.lent_tokens

    scheduler.is_fully_idle = is_fully_idle
    left = hooks["flush_cache"](sglangs, scheduler, empty_cache=False)
    assert left == (False, 0 if idle else 3)
    assert len(given) == idle
    assert asked == [paused], "as SGLang asks"


# ---- several ranks ------------------------------------------------------------------


class Together:
    """Two ranks' trees: the least of what both say."""

    def __init__(self, other: list[float]) -> None:
        self._other = other

    def _all_reduce(self, said: torch.Tensor, op: Any) -> None:
        assert op is torch.distributed.ReduceOp.MIN
        other = torch.tensor(self._other, dtype=said.dtype).reshape(said.shape)
        said.copy_(torch.minimum(said, other))


def place(rank: int) -> Any:
    return SimpleNamespace(attn_tp_size=2, attn_cp_size=1, attn_tp_rank=rank, attn_cp_rank=0)


def test_all_ranks_decide_by_the_leaders_figures() -> None:
    figures = [1.5, -1.0, 3.0]
    follower = RestoringRanks(Together(figures), place(1))
    assert follower.leaders([9.0, -9.0, 0.0]) == figures
    leader = RestoringRanks(Together([math.inf] * 3), place(0))
    assert leader.leaders(figures) == figures


def test_ranks_release_what_all_of_them_can() -> None:
    assert RestoringRanks(Together([2]), place(0)).least(3) == 2
    assert RestoringRanks(Together([4]), place(1)).least(3) == 3
    assert RestoringRanks(None, ALONE).least(3) == 3
