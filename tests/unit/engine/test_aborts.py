"""What one abort among many streams looks at: the requests that it names, and no other."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.engine import BareScheduler, channels_to
from fakes.engine import add as join
from fakes.sglang import Request
from sglang.srt.managers import schedule_batch
from sglang.srt.managers.scheduler import Scheduler

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.engine.stream_messages import alone_message, stands_alone

touched: Counter[str] = Counter()


class Watched(Request):
    """Counts how often the engine looks whether it has ended."""

    def __init__(self, rid: str) -> None:
        self._to_finish: Any = None
        super().__init__(rid, made=1)

    @property
    def to_finish(self) -> Any:
        touched[self.rid] += 1
        return self._to_finish

    @to_finish.setter
    def to_finish(self, reason: Any) -> None:
        self._to_finish = reason

    def finished(self) -> bool:
        touched[self.rid] += 1
        return super().finished()


@pytest.fixture
def scheduler(monkeypatch) -> BareScheduler:
    """SGLang's own code, with nothing but queues."""
    monkeypatch.setattr(
        schedule_batch.ScheduleBatch, "__init__", lambda self, reqs: setattr(self, "reqs", reqs)
    )
    monkeypatch.setattr(
        "sglang.srt.managers.scheduler.get_parallel", lambda: SimpleNamespace(pp_size=1)
    )
    monkeypatch.setattr(Scheduler, "_release_aborted_request", lambda self, req: None)
    monkeypatch.setattr("sglang.srt.managers.scheduler._make_abort_req", lambda req, **_: req)
    retired: list[str] = []
    sent: list[str] = []
    made = BareScheduler(
        retired=retired,
        sent=sent,
        ipc_channels=channels_to(lambda req: sent.append(req.rid)),
        rust_server=None,
        mm_receiver=None,
        dllm_config=None,
        running_batch=None,
        enable_continuous_input_polling=False,
        disaggregation_mode=None,
        beam_coordinator=SimpleNamespace(retire_group=lambda req: retired.append(req.rid)),
        output_streamer=SimpleNamespace(
            stream_output=lambda reqs, _logprobs: sent.extend(req.rid for req in reqs)
        ),
    )
    touched.clear()
    return made


def add(scheduler: BareScheduler, rid: str, phase: Phase) -> Watched:
    req, core = Watched(rid), scheduler.tokenflow
    join(core.book, req)
    core.table.move(req, phase, 0.0)
    if phase is Phase.PAUSED:
        core.body.pauser.hold(req)
    elif phase is Phase.DRAINING:
        core.body.pauser.draining.append(req)
    else:
        scheduler.waiting_queue.append(req)
    return req


def abort(scheduler, rid="", *, abort_all=False):
    scheduler.abort_request(
        SimpleNamespace(rid=rid, abort_all=abort_all, finished_reason=None, abort_message=None)
    )


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.PAUSED, Phase.DRAINING])
def test_an_abort_touches_only_the_request_that_it_names(scheduler, phase) -> None:
    streams = [add(scheduler, f"r{number:03}", phase) for number in range(300)]
    looked, table = [0], scheduler.tokenflow.table
    table.phases.phase = Looked(table.phases.phase, looked)
    abort(scheduler, "r123")
    assert set(touched) <= {"r123"}
    assert looked[0] <= 3, "the phases of others"
    if phase is not Phase.DRAINING:
        assert scheduler.sent == ["r123"]
        assert streams[123] not in table
        assert len(table) == 299
    else:
        assert streams[123]._to_finish is not None
        assert len(table) == 300, "it ends with the result that is in flight"


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.PAUSED])
def test_a_group_of_beams_is_uncounted_wherever_it_waits(scheduler, phase) -> None:
    """One that SGLang has thrown out, in a pause for example, is with the paused streams."""
    add(scheduler, "beams", phase)
    abort(scheduler, "beams")
    assert scheduler.retired == ["beams"]


def test_what_was_refused_keeps_its_reason(scheduler) -> None:
    """Its prompt is another one by then: without the reason, a token of that is the answer."""
    refused, other = Watched("refused"), Watched("other")
    refused.to_finish = reason = schedule_batch.FINISH_ABORT("as many as it may", 429)
    scheduler.running_batch = SimpleNamespace(reqs=[refused, other])
    abort(scheduler, abort_all=True)
    assert refused._to_finish is reason
    assert isinstance(other._to_finish, schedule_batch.FINISH_ABORT)


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
    assert len(scheduler.tokenflow.table) == 0


def test_a_request_whose_grammar_is_compiling_is_seen_before_an_abort_finds_it(scheduler) -> None:
    add(scheduler, "user-1", Phase.WAITING)
    scheduler.grammar_manager.grammar_queue = []
    question = alone_message("user-1")
    assert stands_alone(question, [scheduler.set_internal_state(question)])
    scheduler.grammar_manager.grammar_queue = [Watched("user-12")]
    assert not stands_alone(question, [scheduler.set_internal_state(question)])
