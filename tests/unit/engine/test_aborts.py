"""What one abort among many streams looks at: the requests that it names, and no other."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
from sglang.srt.managers import schedule_batch
from sglang.srt.managers.scheduler import Scheduler
from tokenflow_sgl.engine.requests import TrackingScheduler

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.engine.kv.load_ring import Loader
from tokenflow_sgl.engine.kv.preempt import Pauser
from tokenflow_sgl.engine.stream_messages import alone_message, stands_alone
from tokenflow_sgl.engine.timeouts import PausedTime
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.policy.predictors import LimitLengths

touched: Counter[str] = Counter()


class Request:
    """Counts how often the engine looks whether it has ended."""

    def __init__(self, rid):
        self.rid = rid
        self.output_ids = [1]
        self.return_logprob = False
        self.time_stats = SimpleNamespace(set_completion_time=lambda: None)
        self._to_finish = None
        self.ended = False

    @property
    def to_finish(self):
        touched[self.rid] += 1
        return self._to_finish

    @to_finish.setter
    def to_finish(self, reason):
        self._to_finish = reason

    def finished(self):
        touched[self.rid] += 1
        return self.ended

    def update_finish_state(self, _tokens):
        self.ended = True


@pytest.fixture
def scheduler(monkeypatch):
    """A scheduler of SGLang's with nothing but queues."""
    monkeypatch.setattr(
        schedule_batch.ScheduleBatch, "__init__", lambda self, reqs: setattr(self, "reqs", reqs)
    )
    monkeypatch.setattr(
        "sglang.srt.managers.scheduler.get_parallel", lambda: SimpleNamespace(pp_size=1)
    )
    made = object.__new__(TrackingScheduler)
    made.retired = []
    nothing = SimpleNamespace(
        abort_requests=lambda named: None, retire_group=lambda req: made.retired.append(req.rid)
    )
    made.chunked_req = made.mm_receiver = made.dllm_config = None
    made.running_batch = made.last_batch = None
    made.enable_continuous_input_polling = False
    made.grammar_manager = made.beam_coordinator = nothing
    made.disaggregation_mode = None
    made.waiting_queue = []
    made.sent = []
    made.output_streamer = SimpleNamespace(
        stream_output=lambda reqs, _logprobs: made.sent.extend(req.rid for req in reqs)
    )
    made.tf_table = StreamTable(LimitLengths())
    made.tf_pauser = Pauser(None, lambda req: None, lambda req: None)
    made.tf_paused_time = PausedTime()
    made.tf_loader = Loader(None)
    made.tf_reporter = SimpleNamespace(leaves=lambda req, ended: None)
    made.tf_by_rid = {}
    monkeypatch.setattr(Scheduler, "_release_aborted_request", lambda self, req: None)
    monkeypatch.setattr(
        Scheduler, "send_abort_output", lambda self, _abort, req: self.sent.append(req.rid)
    )
    monkeypatch.setattr("sglang.srt.managers.scheduler._make_abort_req", lambda req, **_: req)
    touched.clear()
    return made


def add(scheduler, rid, phase):
    req = Request(rid)
    scheduler.tf_table.track(
        req, prompt=3, limit=9, rate=10.0, qos_class="reading", arrival=0.0, now=0.0
    )
    scheduler.tf_table.move(req, phase, 0.0)
    if phase is Phase.PAUSED:
        scheduler.tf_pauser.hold(req)
    elif phase is Phase.DRAINING:
        scheduler.tf_pauser.draining.append(req)
    else:
        scheduler.waiting_queue.append(req)
        req.kv = SimpleNamespace(holds_mamba=False)
    return req


def abort(scheduler, rid="", *, abort_all=False):
    scheduler.abort_request(
        SimpleNamespace(rid=rid, abort_all=abort_all, finished_reason=None, abort_message=None)
    )


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.PAUSED, Phase.DRAINING])
def test_an_abort_touches_only_the_request_that_it_names(scheduler, phase) -> None:
    streams = [add(scheduler, f"r{number:03}", phase) for number in range(300)]
    looked = [0]
    scheduler.tf_table.phases.phase = Looked(scheduler.tf_table.phases.phase, looked)
    abort(scheduler, "r123")
    assert set(touched) <= {"r123"}
    assert looked[0] <= 3, "the phases of others"
    if phase is not Phase.DRAINING:
        assert scheduler.sent == ["r123"]
        assert streams[123] not in scheduler.tf_table
        assert len(scheduler.tf_table) == 299
    else:
        assert streams[123]._to_finish is not None
        assert len(scheduler.tf_table) == 300, "it ends with the result that is in flight"


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.PAUSED])
def test_a_group_of_beams_is_uncounted_wherever_it_waits(scheduler, phase) -> None:
    """One that SGLang has thrown out, in a pause for example, is with the paused streams."""
    add(scheduler, "beams", phase)
    abort(scheduler, "beams")
    assert scheduler.retired == ["beams"]


class Looked:
    """The column of phases, which counts how often one of them is read."""

    def __init__(self, column, looked):
        self.column, self.looked = column, looked

    def __getitem__(self, slot):
        self.looked[0] += 1
        return self.column[slot]

    def __setitem__(self, slot, phase):
        self.column[slot] = phase

    def __getattr__(self, name):
        return getattr(self.column, name)


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.PAUSED])
def test_a_beginning_and_everything_can_be_named(scheduler, phase) -> None:
    """As SGLang does: all whose names begin so."""
    for rid in ("a1", "a2", "b1"):
        add(scheduler, rid, phase)
    abort(scheduler, "a")
    assert sorted(scheduler.sent) == ["a1", "a2"]
    abort(scheduler, abort_all=True)
    assert sorted(scheduler.sent) == ["a1", "a2", "b1"]
    assert len(scheduler.tf_table) == 0


def test_a_request_whose_grammar_is_compiling_is_seen_before_an_abort_finds_it(scheduler) -> None:
    add(scheduler, "user-1", Phase.WAITING)
    scheduler.tf_by_rid = {req.rid: req for req in scheduler.waiting_queue}
    scheduler.tf_alone, scheduler.tf_clock = False, SimpleNamespace(now=0.0)
    scheduler.grammar_manager.grammar_queue = []
    question = alone_message("user-1")
    assert stands_alone(question, [scheduler.set_internal_state(question)])
    scheduler.grammar_manager.grammar_queue = [Request("user-12")]
    assert not stands_alone(question, [scheduler.set_internal_state(question)])
