"""What the core does at each moment of SGLang's loop, and in which order with what is beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.engine import BareScheduler, Says, add, book_of, core_of
from fakes.sglang import Batch, Request
from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.managers.scheduler import Scheduler

from tokenflow_sgl.contract import Cause, Decision, Mode, Phase, Preempt
from tokenflow_sgl.engine import core as core_module
from tokenflow_sgl.engine import view
from tokenflow_sgl.engine.agreement import Agreement
from tokenflow_sgl.engine.core import Core
from tokenflow_sgl.engine.extension import Extension, Extensions, Prefill
from tokenflow_sgl.engine.shared_clock import ClockTick
from tokenflow_sgl.engine.telemetry.prometheus import Recorder
from tokenflow_sgl.engine.timeouts import PausedTime


class Engine:
    """A core over a scheduler that pretends; not alone: other ranks follow this one's clock."""

    def __init__(self, *beside: Extension, alone: bool = True, **more: Any) -> None:
        self.scheduler = BareScheduler(
            lambda scheduler: core_of(
                scheduler,
                book_of(scheduler, alone=alone, now=1.0),
                extensions=Extensions(beside),
                **more,
            )
        )
        self.core: Core = self.scheduler.tokenflow
        self.book, self.pauser = self.core.book, self.core.body.pauser

    def stream(self, phase: Phase, rid: str = "s", made: int = 5, **more: Any) -> Any:
        """A stream in this phase."""
        req = Request(rid, made=made, **more)
        add(self.book, req)
        if phase is Phase.WAITING:
            self.scheduler.waiting_queue.append(req)
        else:
            self.core.table.move(req, phase, 1.0)
        if phase is Phase.PAUSED:
            self.pauser.hold(req)
        elif phase is Phase.DRAINING:
            self.pauser.draining.append(req)
        return req

    def queue(self, req: Any, *, takes: bool = True, is_retracted: bool = False) -> int:
        """It comes; `takes`: SGLang queues it. Returns how often SGLang was told to."""
        asked = 0

        def sglangs() -> None:
            nonlocal asked
            asked += 1
            if takes:
                self.scheduler.waiting_queue.append(req)

        self.core.queue(req, sglangs, is_retracted=is_retracted)
        return asked

    def phase(self, req: Any) -> Phase:
        return Phase(int(self.core.table.phases.phase[self.core.table.slot(req)]))


# ---- requests come ------------------------------------------------------------------


def test_a_newcomer_is_a_stream_of_the_class_that_it_names() -> None:
    engine, req = Engine(), Request("new", made=0, stream=True)
    req.sampling_params.custom_params = {"tokenflow_class": "listening"}
    assert engine.queue(req) == 1
    table = engine.core.table
    assert engine.phase(req) is Phase.WAITING
    assert table.qos_class(table.slot(req)) == "listening"
    assert engine.book.by_rid == {"new": req}
    assert engine.book.clock.now > 1.0, "it arrives at the present time"


def test_a_newcomer_that_must_not_be_disturbed_is_never_preempted() -> None:
    engine = Engine()
    beams, plain = Request("beams", made=0, beam_group=object()), Request("plain", made=0)
    for req in (beams, plain):
        engine.queue(req)
    table = engine.core.table
    assert [bool(table.preemptible[table.slot(req)]) for req in (beams, plain)] == [False, True]


def test_one_that_sglang_turns_away_is_no_stream() -> None:
    engine, req = Engine(), Request("new", made=0)
    assert engine.queue(req, takes=False) == 1
    assert req not in engine.core.table


def test_one_with_bad_terms_is_queued_to_be_ended_and_is_no_stream() -> None:
    engine, req = Engine(), Request("new", made=0, stream=True)
    req.sampling_params.custom_params = {"tokenflow_rate": -1}
    engine.queue(req)
    assert req.to_finish.startswith("tokenflow_rate is -1")
    assert engine.scheduler.waiting_queue == [req]
    assert req not in engine.core.table


def test_health_checks_are_no_streams() -> None:
    engine, req = Engine(), Request(f"{HEALTH_CHECK_RID_PREFIX}_1", made=0)
    engine.queue(req)
    assert req not in engine.core.table


@pytest.mark.parametrize("is_retracted", [True, False])
def test_a_known_stream_with_output_is_paused_and_not_queued(is_retracted) -> None:
    """The engine has thrown it out; the limit of its queue is for newcomers."""
    engine = Engine()
    req = engine.stream(Phase.RUNNING)
    assert engine.queue(req, is_retracted=is_retracted) == 0
    assert engine.phase(req) is Phase.PAUSED
    assert list(engine.pauser.paused) == [req]


def test_a_known_stream_without_output_waits_in_sglangs_queue() -> None:
    engine = Engine()
    req = engine.stream(Phase.RUNNING, made=0)
    req.sampling_params.custom_params = {"tokenflow_rate": -1}
    assert engine.queue(req, is_retracted=True) == 1
    assert engine.phase(req) is Phase.WAITING
    assert req.to_finish is None, "its terms were read when it came"
    assert len(engine.core.table) == 1


def test_a_known_stream_that_is_turned_away_does_not_wait() -> None:
    engine = Engine()
    req = engine.stream(Phase.RUNNING, made=0)
    engine.queue(req, takes=False)
    assert engine.phase(req) is Phase.RUNNING
    engine.core.released(req)
    assert req not in engine.core.table


def test_what_comes_during_admission_is_behind_the_whole_queue() -> None:
    """Its grammar has become ready: it counts against the limit of all that wait."""
    engine = Engine()
    first, hidden = (engine.stream(Phase.WAITING, rid, made=0) for rid in "ab")
    queue, req = engine.core.gate.queue, Request("late", made=0)
    with queue.only([first]):
        engine.queue(req)
        assert engine.scheduler.waiting_queue == [first]
    assert engine.scheduler.waiting_queue == [first, hidden, req]
    assert req in engine.core.table


def test_with_other_ranks_a_newcomer_arrives_at_the_leaders_time() -> None:
    engine, req = Engine(alone=False), Request("new", made=0)
    engine.queue(req)
    assert engine.book.clock.now == 1.0, "this rank's own clock is not asked"
    engine.core.tick(ClockTick(7.0, 0))
    table = engine.core.table
    assert table.readers.arrival[table.slot(req)] == 7.0
    engine.core.tick(ClockTick(8.0, 0))
    assert table.readers.arrival[table.slot(req)] == 7.0


# ---- an extension has interrupted a prefill -----------------------------------------


def test_a_request_that_is_put_back_waits_before_all_others() -> None:
    engine = Engine()
    other = engine.stream(Phase.WAITING, "other", made=0)
    req = engine.stream(Phase.RUNNING, made=0)
    stranger = Request(HEALTH_CHECK_RID_PREFIX, made=0)
    engine.core.requeue(req)
    assert engine.scheduler.waiting_queue == [req, other]
    assert engine.phase(req) is Phase.WAITING
    engine.core.requeue(stranger)
    assert engine.scheduler.waiting_queue == [stranger, req, other]


def test_one_with_output_that_is_put_back_is_paused() -> None:
    engine = Engine()
    req = engine.stream(Phase.RUNNING)
    engine.core.requeue(req)
    assert engine.scheduler.waiting_queue == []
    assert list(engine.pauser.paused) == [req]
    assert engine.phase(req) is Phase.PAUSED


# ---- prefills begin -----------------------------------------------------------------


class Resumes(Recorder):
    """Keeps how many tokens of each resumed stream came from where."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int, int]] = []

    def resumed(self, recomputed: int, loaded: int, resident: int) -> None:
        self.told.append((recomputed, loaded, resident))


def test_streams_of_a_prefill_run_and_those_that_were_paused_get_their_penalties_back(
    monkeypatch,
) -> None:
    rebuilt: list[Any] = []
    monkeypatch.setattr(
        core_module, "rebuild_rows", lambda _batch, resumed, overlap: rebuilt.extend(resumed)
    )
    engine = Engine(recorder=(counts := Resumes()))
    fresh = engine.stream(Phase.WAITING, "fresh", made=0)
    paused = engine.stream(Phase.PAUSED, "paused")
    paused.full_untruncated_fill_ids, paused.prefix_len = [1] * 20, 16
    paused.host_hit_length, paused.host_loaded_length = 1, 10
    decodes = engine.stream(Phase.RUNNING, "decodes")
    batch: Any = Batch(fresh, paused, Request(HEALTH_CHECK_RID_PREFIX, made=0), decodes)
    batch.decoding_reqs = [decodes]
    engine.core.prefill_began(batch)
    assert [engine.phase(req) for req in (fresh, paused, decodes)] == [Phase.RUNNING] * 3
    assert not engine.pauser.paused
    assert rebuilt == [paused]
    assert counts.told == [(4, 10, 6)], "computed again, loaded, and still there"


# ---- streams end --------------------------------------------------------------------


def test_streams_that_have_ended_are_forgotten_in_the_next_pass() -> None:
    engine = Engine()
    ended = engine.stream(Phase.RUNNING, "ended", finished_reason=FINISH_ABORT())
    runs = engine.stream(Phase.RUNNING, "runs")
    plan = SimpleNamespace(batch_to_run=None)
    engine.core.next_batch(Batch(runs), None, lambda *_: plan)
    assert ended not in engine.core.table
    assert engine.book.by_rid == {"runs": runs}


def test_a_paused_stream_that_was_aborted_is_finished_with_its_output(monkeypatch) -> None:
    """A timeout names no abort: it only marks the request."""
    released: list[Any] = []
    monkeypatch.setattr(
        Scheduler, "_release_aborted_request", lambda _self, req: released.append(req)
    )
    engine = Engine()
    req = engine.stream(Phase.PAUSED, made=2, to_finish="timeout")
    engine.core.next_batch(Batch(), None, lambda *_: SimpleNamespace(batch_to_run=None))
    assert engine.scheduler.output_streamer.sent == [("s", [1, 1])]
    assert released == [req]
    assert req.finished_reason == "timeout"
    assert not engine.pauser.paused
    assert req not in engine.core.table


def test_a_request_that_is_no_stream_is_released_without_a_word() -> None:
    Engine().core.released(Request(HEALTH_CHECK_RID_PREFIX))


# ---- what the leader sends ----------------------------------------------------------


def test_alone_nothing_is_sent_but_sglangs_timeouts() -> None:
    timeout = SimpleNamespace(rid="unknown")
    assert Engine().core.leader_messages([]) == []
    assert Engine().core.leader_messages([timeout]) == [timeout]


def test_other_ranks_get_the_clock_behind_the_timeouts() -> None:
    """Even while there is no stream: the first one's arrival is told by it."""
    engine = Engine(alone=False, agreement=Agreement(0))
    timeout = SimpleNamespace(rid="unknown")
    first, tick = engine.core.leader_messages([timeout])
    assert first is timeout
    assert isinstance(tick, ClockTick)
    assert tick.host_total == engine.core.body.host_tokens()
    assert tick.passes == (0, {})
    assert engine.book.clock.now == 1.0, "the leader, too, decides by what arrives"


def test_the_time_of_a_pause_is_no_reason_for_a_timeout(monkeypatch) -> None:
    monkeypatch.setenv("SGLANG_REQ_RUNNING_TIMEOUT", "10")
    engine, now = Engine(), 0.0
    engine.book.paused_time = PausedTime(lambda: now)
    runs, paused = (engine.stream(Phase.RUNNING, rid) for rid in ("runs", "paused"))
    now = 4.0
    engine.pauser.hold(paused)
    now = 12.0
    timeouts = [SimpleNamespace(rid=req.rid) for req in (runs, paused)]
    assert engine.core.leader_messages(timeouts) == timeouts[:1]


# ---- the policy is asked ------------------------------------------------------------


@pytest.fixture
def victim(monkeypatch) -> Engine:
    """An engine whose policy preempts the first stream, over passes that SGLang defers."""
    parallel = SimpleNamespace(pp_max_micro_batch_size=64)
    monkeypatch.setattr(view, "get_parallel", lambda: parallel)
    decision = Decision(Mode.WORKING_SET, preempt=(Preempt(0, Cause.EXCHANGE),))
    engine = Engine(policy=Says(decision))
    engine.scheduler.policy = "SGLang's"
    engine.scheduler.req_to_token_pool = SimpleNamespace(available_size=lambda: 8)
    plan = SimpleNamespace(batch_to_run=None)

    def sglangs(self: Any, running: Any, _last: Any) -> Any:
        if not self.defers:
            self.get_new_batch_prefill(running)
        self.decoded = self.update_running_batch(running)
        return plan

    monkeypatch.setattr(Scheduler, "get_next_batch_to_run", sglangs)
    monkeypatch.setattr(Scheduler, "get_new_batch_prefill", lambda *_: plan)
    monkeypatch.setattr(Scheduler, "update_running_batch", lambda _self, batch: list(batch.reqs))
    return engine


def test_a_pass_that_sglang_keeps_for_decoding_is_decided_all_the_same(victim) -> None:
    scheduler, req = victim.scheduler, victim.stream(Phase.RUNNING)
    scheduler.result_queue, scheduler.defers = [(Batch(req), None)], True
    scheduler.get_next_batch_to_run(batch := Batch(req), None)
    assert victim.phase(req) is Phase.DRAINING
    assert batch.reqs == []
    assert scheduler.decoded == [], "SGLang sees what the decision has left"


def test_each_pass_is_decided_once(victim, monkeypatch) -> None:
    decide, asked = Core.decide, []
    monkeypatch.setattr(Core, "decide", lambda *args: asked.append(args) or decide(*args))
    scheduler, req = victim.scheduler, victim.stream(Phase.RUNNING)
    scheduler.result_queue = [(Batch(req), None)]
    for passes, scheduler.defers in enumerate((False, True, True, False), 1):
        scheduler.get_next_batch_to_run(Batch(), None)
        assert len(asked) == passes


def test_a_decode_server_decides_before_it_gives_memory_away(victim, monkeypatch) -> None:
    decide, asked = Core.decide, []
    monkeypatch.setattr(Core, "decide", lambda *args: asked.append(args) or decide(*args))
    scheduler, req = victim.scheduler, victim.stream(Phase.RUNNING)
    scheduler.result_queue = [(Batch(req), None)]
    victim.core.decode_queue(Batch(req), None, lambda: asked.append("memory"))
    scheduler.update_running_batch(Batch())
    assert len(asked) == 2
    assert asked[-1] == "memory"


# ---- what is idle -------------------------------------------------------------------


class Busy(Extension):
    """Has something under way."""

    idle = False


@pytest.mark.parametrize(
    ("phase", "idle", "idle_but_for_what_waits"),
    [(Phase.DRAINING, False, False), (Phase.PAUSED, False, True), (Phase.RUNNING, True, True)],
)
def test_streams_that_sglang_does_not_see_are_work(
    monkeypatch, phase, idle, idle_but_for_what_waits
) -> None:
    monkeypatch.setattr(Scheduler, "is_fully_idle", lambda *_: True)
    engine = Engine()
    engine.stream(phase)
    assert engine.scheduler.is_fully_idle() is idle
    assert engine.scheduler.is_fully_idle(ignore_waiting=True) is idle_but_for_what_waits


def test_what_is_loaded_is_work() -> None:
    engine = Engine()
    assert engine.core.idle(for_health_check=False, ignore_waiting=True)
    engine.core.body.memory.loader.request = Request()
    assert not engine.core.idle(for_health_check=False, ignore_waiting=True)


def test_an_extension_is_no_reason_to_leave_a_health_check_unasked(monkeypatch) -> None:
    scheduler = Engine(Busy()).scheduler
    monkeypatch.setattr(Scheduler, "is_fully_idle", lambda *_: True)
    assert not scheduler.is_fully_idle()
    assert scheduler.is_fully_idle(for_health_check=True)
    monkeypatch.setattr(Scheduler, "is_fully_idle", lambda *_: False)
    assert not scheduler.is_fully_idle(for_health_check=True)


# ---- the order of what is beside ----------------------------------------------------


class Notes(Extension):
    """Notes under its name what it is told, in a list that all share."""

    def __init__(self, name: str, heard: list[str]) -> None:
        self._name, self._heard = name, heard

    def _note(self, what: str) -> None:
        self._heard.append(f"{self._name} {what}")

    def pass_begins(self, running_batch: Any) -> None:
        self._note("begins")

    def prefill(self, running_batch: Any, choose: Prefill) -> Any:
        self._note("before")
        plan = choose(running_batch)
        self._note("behind")
        return plan

    def launched(self, plan: Any) -> None:
        self._note("launched")

    def computes_beside(self, batch: Any) -> bool:
        self._note("asked")
        return self._name == "first"

    @contextmanager
    def engine_pauses(self) -> Iterator[None]:
        self._note("pauses")
        yield
        self._note("paused")


@pytest.fixture
def heard() -> list[str]:
    """What was told, in order."""
    return []


@pytest.fixture
def both(heard) -> Engine:
    """An engine with two extensions."""
    return Engine(Notes("first", heard), Notes("second", heard))


def test_a_pass_is_told_around_sglangs_choice_and_all_are_asked_what_they_compute(
    both, heard, monkeypatch
) -> None:
    plan = SimpleNamespace(batch_to_run=None)

    def sglangs(_self: Any, _running: Any, _last: Any) -> Any:
        heard.append("SGLang's")
        return plan

    monkeypatch.setattr(Scheduler, "get_next_batch_to_run", sglangs)
    assert both.scheduler.get_next_batch_to_run(Batch(), None) is plan
    assert heard == [
        *("first begins", "second begins", "SGLang's"),
        *("first launched", "second launched", "first asked", "second asked"),
    ]


def test_the_first_extension_is_the_outermost_around_a_prefill(both, heard, monkeypatch) -> None:
    def sglangs(self: Any, _running: Any) -> Any:
        heard.append(f"SGLang's of {len(self.waiting_queue)}")
        return SimpleNamespace(batch_to_run=None)

    monkeypatch.setattr(Scheduler, "get_new_batch_prefill", sglangs)
    both.scheduler.policy = "SGLang's"
    both.scheduler.waiting_queue.append(Request(HEALTH_CHECK_RID_PREFIX))
    both.scheduler.get_new_batch_prefill(Batch())
    assert heard == [
        *("first before", "second before", "SGLang's of 1", "second behind", "first behind")
    ]


def test_copies_end_before_the_engine_pauses_and_streams_are_paused_behind_it(
    both, heard, monkeypatch
) -> None:
    drains = both.stream(Phase.DRAINING)

    def sglangs(_self: Any, _message: Any) -> None:
        heard.append("SGLang's")
        assert both.pauser.draining == [drains]

    monkeypatch.setattr(Scheduler, "pause_generation", sglangs)
    monkeypatch.setattr(
        "tokenflow_sgl.engine.kv.preempt.release_kv_cache",
        lambda req, *_, **__: setattr(req.kv, "holds_kv", False),
    )
    both.scheduler.pause_generation(SimpleNamespace(mode="retract"))
    assert heard == [
        *("first pauses", "second pauses", "SGLang's", "second paused", "first paused")
    ]
    assert not both.pauser.draining
    assert both.phase(drains) is Phase.PAUSED


def test_what_drains_goes_on_where_the_engine_pauses_in_place(both, monkeypatch) -> None:
    drains = both.stream(Phase.DRAINING)
    monkeypatch.setattr(Scheduler, "pause_generation", lambda *_: None)
    both.scheduler.pause_generation(SimpleNamespace(mode="in_place"))
    assert both.pauser.draining == [drains]
