"""The core: the policy in SGLang's loop.

Each method is one moment of it, in which the shell calls. The core asks the policy, carries the
decision out through its body, and keeps the book of streams up to date; it is built from its parts
(`build`), and overrides nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_LENGTH, ScheduleBatch
from sglang.srt.managers.utils import is_health_check_generate_req

from tokenflow_sgl.contract import Decision
from tokenflow_sgl.costs import StepCosts, StepTimer
from tokenflow_sgl.engine.admission import PolicedAdmission
from tokenflow_sgl.engine.agreement import Agreement
from tokenflow_sgl.engine.batch_work import loaded_tokens, work_of
from tokenflow_sgl.engine.body.unified import UnifiedBody
from tokenflow_sgl.engine.book import Book
from tokenflow_sgl.engine.drafts import Drafts
from tokenflow_sgl.engine.extension import Extensions, Prefill
from tokenflow_sgl.engine.frontend.validate import terms_of
from tokenflow_sgl.engine.kv.penalties import rebuild_rows
from tokenflow_sgl.engine.lengths_file import LengthsFile
from tokenflow_sgl.engine.sglang.batch import NextPlan, ReqBatch
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.worker import LiveScheduler
from tokenflow_sgl.engine.shared_clock import ClockTick, local_time
from tokenflow_sgl.engine.stream_messages import flush_waits, take
from tokenflow_sgl.engine.telemetry.applied import report_applied, report_resumed
from tokenflow_sgl.engine.telemetry.decision_log import DecisionLog
from tokenflow_sgl.engine.telemetry.headroom_watch import HeadroomWatch
from tokenflow_sgl.engine.telemetry.prometheus import Recorder
from tokenflow_sgl.engine.telemetry.sampling import DeliveryReporter, Effort
from tokenflow_sgl.engine.tenants import take_tenant
from tokenflow_sgl.engine.unsupported_front_ends import without_python
from tokenflow_sgl.engine.view import View
from tokenflow_sgl.lifecycle import Decider, apply
from tokenflow_sgl.lifecycle.rest_ends import any_waits, end_rests
from tokenflow_sgl.lifecycle.table import StreamTable

CUT_OFF = (FINISH_ABORT, FINISH_LENGTH)
"""How outputs end that would have been longer."""


@dataclass(frozen=True, slots=True)
class Meters:
    """What is measured and reported.

    Attributes:
        recorder: Counts metrics.
        timer: Learns what steps cost.
        effort: The time that goes into this package.
        reporter: Accounts what steps have delivered.
        headroom: How many more tokens would be served well.
    """

    recorder: Recorder
    timer: StepTimer
    effort: Effort
    reporter: DeliveryReporter
    headroom: HeadroomWatch


@dataclass(slots=True)
class Core:
    """The policy in one scheduler's loop.

    Attributes:
        scheduler: SGLang's.
        book: Of the streams.
        body: Carries decisions out.
        decider: Asks the policy.
        view: What the policy sees.
        gate: SGLang's admission, under the policy.
        meters: What is measured.
        drafts: Of speculative decoding.
        extensions: What is beside.
        agreement: With other ranks, where it is checked.
        lengths_file: In which learned lengths survive a restart.
        log: Of decisions.
    """

    scheduler: LiveScheduler
    book: Book
    body: UnifiedBody
    decider: Decider
    view: View
    gate: PolicedAdmission
    meters: Meters
    drafts: Drafts
    extensions: Extensions
    agreement: Agreement | None = None
    lengths_file: LengthsFile | None = None
    log: DecisionLog | None = None
    decided: bool = False
    """Whether the policy was asked in the present pass."""
    named: list[Any] | None = None
    """What drains or is paused of what the present abort names: no abort looks through all."""

    # ---- what extensions ask (`extension.Host`) -------------------------------------

    @property
    def recorder(self) -> Recorder:
        """The recorder in which this scheduler's metrics are counted."""
        return self.meters.recorder

    @property
    def table(self) -> StreamTable[Any]:
        """The table of the streams, one slot for each."""
        return self.book.table

    def costs(self) -> StepCosts:
        """What steps cost, as learned so far."""
        return self.meters.timer.costs()

    def admission(self) -> Sequence[Any] | None:
        """Waiting requests in the order in which they are admitted; None: first come first."""
        return self.gate.order()

    def prefill_began(self, batch: ReqBatch) -> None:
        """The prefill of this batch is launched, or an extension launches it in parts."""
        with self.meters.effort:
            self.body.memory.loader.guard(batch)
            self._start(batch)

    def requeue(self, req: Req) -> None:
        """A request whose prefill an extension has interrupted waits again, before all others."""
        if req.output_ids:
            return self.body.pauser.hold(req)
        self.scheduler.waiting_queue.insert(0, req)
        if req in self.book.table:
            self.book.waits(req)

    # ---- the shared clock -----------------------------------------------------------

    def leader_messages(self, aborts: Sequence[Any]) -> list[Any]:
        """What the leader sends to all ranks with the requests: timeouts that stand, its clock."""
        messages = self.book.overdue(aborts)
        if not self.book.alone:
            # Even while there is no stream: all ranks take the first one's arrival from it.
            with self.meters.effort:
                messages.append(self._measure())
        return messages

    def tick(self, tick: ClockTick) -> None:
        """The leader's clock; it comes behind the requests that arrived with it."""
        if self.agreement is not None and tick.passes is not None:
            self.agreement.compare(tick.passes)
        self.book.clock.receive(tick)
        self.book.redate()

    def _measure(self) -> ClockTick:
        return ClockTick(
            local_time(),
            self.body.host_tokens(),
            *self.body.memory.watch.look(),
            passes=self.agreement.report() if self.agreement else None,
        )

    def _keep_time(self) -> None:
        """A pass begins: go on with the clock, which stands still while nothing is served."""
        if len(self.book.table):
            self.tick(self._measure())
        else:
            self.body.memory.watch.settle()

    # ---- a pass ---------------------------------------------------------------------

    def next_batch(
        self,
        running_batch: ReqBatch,
        last_batch: ReqBatch | None,
        choose: Callable[[Any, Any], Any],
    ) -> Any:
        """Account what the last step delivered, then let SGLang choose the next batch."""
        with self.meters.effort:
            self._begin(running_batch, last_batch)
        self.extensions.pass_begins(running_batch)
        plan = choose(running_batch, last_batch)
        self.extensions.launched(plan)
        self.launched(plan)
        return plan

    def _begin(self, running_batch: ReqBatch, last_batch: ReqBatch | None) -> None:
        book, body, self.decided = self.book, self.body, False
        if book.alone:
            # By itself: a message would be lost where --scheduler-recv-interval skips a turn.
            self._keep_time()
        now = book.clock.now
        self.meters.timer.begin(now)
        end_rests(book.table, now)
        ended = body.pauser.finish_draining(lambda: body.in_flight)
        self.meters.reporter.iteration(now)
        # A dict, not a set: ranks must forget in the same order.
        for req in dict.fromkeys([*ended, *book.ended()]):
            aborted = isinstance(req.finished_reason, FINISH_ABORT)
            cut_off = isinstance(req.finished_reason, CUT_OFF)
            self._forget(req, cut_off=cut_off, ended=None if aborted else now)
        self._end_aborted(body.pauser.paused)
        self._drop_lost(running_batch, last_batch)
        if self.lengths_file is not None:
            self.lengths_file.save(local_time())

    def _drop_lost(self, running_batch: ReqBatch, last_batch: ReqBatch | None) -> None:
        """Forget streams that are in no batch and no queue: the engine has ended them by itself."""
        scheduler, pauser = self.scheduler, self.body.pauser
        queue, table = self.body.queue, self.book.table
        held = {*pauser.draining, *pauser.paused, *running_batch.reqs}
        found = sum(req in table for req in held - queue.requests)
        if found + len(queue.requests) - len(queue.untracked) == len(table):
            return  # as in nearly every pass
        held |= queue.requests
        for batch in (last_batch, *(batch for batch, _ in scheduler.result_queue)):
            held.update(batch.reqs if batch is not None else ())
        held.add(scheduler.chunked_req)
        for req in table.lost(held):
            self._forget(req, cut_off=True)
            if req.finished_reason is None:
                self.recorder.lost()

    def decide(self, running_batch: ReqBatch) -> Decision:
        """Ask the policy, and carry out what it says."""
        now, body, table, self.decided = self.book.clock.now, self.body, self.book.table, True
        body.begin(running_batch)
        body.growth = self.gate.limits.growth = self.drafts.growth(self.meters.timer)
        body.landed(now)
        state = partial(self.view.state, self.decider.memo, writes=body.writes)
        self.meters.headroom.look(now, len(table), state)
        decision = self.decider.decide(now, len(table), body.free_share, state)
        if self.agreement is not None:
            self.agreement.decided(decision)
        applied = apply(decision, table.phases, body, now)
        report_applied(applied, table, self.recorder)
        return decision

    def new_prefill(self, running_batch: ReqBatch, choose: Prefill) -> Any:
        """Decide, carry the decision out, and let SGLang's admission see what it offers."""
        with self.meters.effort:
            decision = self.decide(running_batch)
            running_batch = self.body.rejoined(running_batch)
        choose = partial(self.extensions.prefill, choose=choose)
        plan = self.gate.prefill(decision, running_batch, choose)
        if plan.batch_to_run is not None:
            self.prefill_began(plan.batch_to_run)
        return plan

    def adder(self) -> type:
        """The class by which SGLang admits prefills."""
        return self.extensions.wrap_adder(self.gate.adder)

    def decode(self, batch: ReqBatch, decode: Callable[[Any], Any]) -> Any:
        """The batch of a decode step; None: the step is skipped, as its memory is on its way.

        A pass that SGLang keeps for decoding (--prefill-decode-interval) is decided here.
        """
        if not self.decided:
            with self.meters.effort:
                self.decide(batch)
        if self.body.skips_decode(batch, self.book.clock.now):
            return None
        return decode(batch)

    def decode_queue(
        self, running_batch: ReqBatch, last_batch: ReqBatch | None, admit: Callable[[], None]
    ) -> None:
        """A decode server's pass: account, decide, and let SGLang give memory to what was chosen.

        Args:
            running_batch: Of the streams that decode.
            last_batch: Whose step is under way.
            admit: SGLang's own way to give memory to what was retracted and to what arrives.
        """
        with self.meters.effort:
            self._begin(running_batch, last_batch)
            self.decide(running_batch)
        self.body.admit_arrivals(admit, self.meters.effort)

    def joins(self, running_batch: ReqBatch, join: Callable[[Any], Any]) -> Any:
        """On a decode server: the batch of what joins the running batch; `join`: SGLang's own."""
        return self.body.join(running_batch, join, self.meters.effort)

    def _start(self, batch: ReqBatch) -> None:
        """Streams of a new prefill batch run from now on."""
        body, book = self.body, self.book
        decoding = set(batch.decoding_reqs or ())
        resumed = []
        for req in batch.reqs:
            if req in decoding or req not in book.table:
                continue
            if req in body.pauser.paused:
                report_resumed(req, loaded_tokens(req), self.recorder)
            body.memory.writer.started(req)
            if req.output_ids:
                resumed.append(req)
            book.runs(req)
        body.pauser.resume(batch.reqs)
        if resumed:
            rebuild_rows(batch, resumed, overlap=self.scheduler.enable_overlap)

    def launched(self, plan: NextPlan) -> None:
        """SGLang has chosen what runs next."""
        body, meters = self.body, self.meters
        body.launched()
        with meters.effort:
            crowded = bool(body.pauser.paused) and any_waits(self.book.table)
            queued = body.memory.loader.request is not None
            batch = plan.batch_to_run
            partly = self.extensions.computes_beside(batch)
            work = None if partly else work_of(batch, crowded=crowded, queued=queued)
            meters.timer.launch(work)
            if self.agreement is not None:
                self.agreement.passed(self._facts(plan))
        meters.effort.end_pass(worked=batch is not None)

    def _facts(self, plan: NextPlan) -> dict[str, object]:
        """What ranks that decide together must have in common after each pass."""
        table, pauser, clock = self.book.table, self.body.pauser, self.book.clock
        batch, order = plan.batch_to_run, table.order()
        return {
            "clock": (clock.now, clock.host_total, clock.store_rate, clock.load_rate),
            "streams": (order.tolist(), table.phases.phase[order].tolist()),
            "batch": None if batch is None else (batch.forward_mode.name, rids(batch.reqs)),
            "running": rids(plan.running_batch.reqs),
            "preempted": (rids(pauser.draining), rids(pauser.paused)),
            "waiting": rids(self.scheduler.waiting_queue),
            "free memory": self.body.free,
        }

    # ---- requests come --------------------------------------------------------------

    def queue(self, req: Req, queue: Callable[[], None], *, is_retracted: bool) -> None:
        """A request comes, or comes back: SGLang is about to queue it.

        Args:
            req: SGLang's.
            queue: SGLang's own way to do so.
            is_retracted: SGLang has taken its memory away.
        """
        book, body = self.book, self.body
        known = req in book.table
        if is_retracted and body.loses_retracted:
            queue()
            if known:
                book.waits(req)
                book.paused_time.begin(req)
            return
        if known and req.output_ids:
            # Thrown out by the engine itself (memory, or pause_generation): it waits as preempted
            # ones do, not in the queue, whose limit is for newcomers.
            return body.pauser.hold(req)
        asked = tenant = None
        if not known:
            tenant = None if book.table.tenants is None else take_tenant(req)
            asked = terms_of(req, book.classes, without_python(self.scheduler.server_args))
            asked = book.granted(req, asked, tenant)
        with self.gate.queue.whole() as whole:
            queue()
            queued = body.newest(whole) is req
        if queued and asked is None:
            book.waits(req)
        elif queued and req.to_finish is None and not is_health_check_generate_req(req):
            assert asked is not None
            book.arrives(req, asked, body.undisturbed(req), tenant)
            slot = book.table.slot(req)
            prompt = int(book.table.prompt[slot])
            expected = self.meters.headroom.comes(book.clock.now, prompt)
            book.table.expected_wait[slot] = expected

    def told(self, message: Any) -> Any:
        """The answer to what the front end tells of live streams."""
        book = self.book
        if book.alone:
            book.clock.at_least(local_time())  # it stands while the engine is paused
        compiling = self.scheduler.grammar_manager.grammar_queue
        return take(message, book.by_rid, compiling, book.table, book.clock.now)

    def requests_come(self, messages: Any) -> None:
        """A flush that waits ends all rests: it is done when no stream is left."""
        flush_waits(messages, self.book.table, self.book.clock.now)

    # ---- requests end ---------------------------------------------------------------

    def held_batches(self) -> list[Any]:
        """What SGLang's search for aborted requests is to see beside its own batches."""
        pauser, held = self.body.pauser, self.named
        held = [*pauser.draining, *pauser.paused] if held is None else held
        return [*([ScheduleBatch(reqs=held)] if held else []), *self.body.held_batches()]

    def abort(
        self,
        rid: str,
        abort: Callable[[], None],
        in_flight: Callable[[], Iterable[ReqBatch | None]],
    ) -> None:
        """End aborted streams wherever they are; a paused one with its output so far.

        Args:
            rid: How their ids begin; "": all.
            abort: SGLang's own way to do so.
            in_flight: SGLang's batches, and what `held_batches` gives.
        """
        self.named = self.body.pauser.named(rid)
        running = [req for batch in in_flight() if batch is not None for req in batch.reqs]
        ending = [(req, req.to_finish) for req in running if req.to_finish is not None]
        try:
            abort()
            for req, reason in ending:
                # One that was refused runs with another prompt: with another reason its client
                # would take that one's token for an answer.
                if req.to_finish is not None:
                    req.to_finish = reason
            self._end_aborted(self.named)
        finally:
            self.named = None
        for req in self.body.take_aborted():
            self._finish_aborted(req)

    def _end_aborted(self, among: Iterable[Any]) -> None:
        """Finish those paused streams that were aborted, with the output that they have."""
        paused = self.body.pauser.paused
        for req in [req for req in among if req in paused and req.to_finish is not None]:
            self.body.drop(req)
            self.body.pauser.resume([req])
            self._finish_aborted(req)

    def _finish_aborted(self, req: Req) -> None:
        scheduler = self.scheduler
        scheduler._release_aborted_request(req)
        scheduler.beam_coordinator.retire_group(req)
        req.update_finish_state(0)
        req.time_stats.set_completion_time()
        scheduler.output_streamer.stream_output([req], req.return_logprob)

    def released(self, req: Req) -> None:
        """SGLang has dropped a request without a row: turned away, or aborted while it waits."""
        if req in self.book.table:
            self._forget(req, cut_off=True)

    def _forget(self, req: Req, *, cut_off: bool, ended: float | None = None) -> None:
        """The stream is gone; cut_off: its output would have been longer; ended: when it did."""
        self.meters.reporter.leaves(req, ended)
        self.body.forget(req)
        self.book.forget(req, cut_off=cut_off)

    # ---- the engine is paused, or idle ----------------------------------------------

    def pause(self, pause: Callable[[], None], *, retracts: bool) -> None:
        """The engine is paused: copies end, and the weights may change.

        Args:
            pause: SGLang's own way to do so.
            retracts: No stream keeps its KV.
        """
        self.body.engine_pauses()
        with self.extensions.engine_pauses():
            pause()
        self.body.engine_paused(retracted=retracts, now=self.book.clock.now)
        self.meters.timer.interrupted()

    def idle(self, *, for_health_check: bool, ignore_waiting: bool) -> bool:
        """Whether nothing of ours is under way: paused and draining streams are work."""
        if not for_health_check and not self.extensions.idle:
            return False
        return self.body.idle(ignore_waiting=ignore_waiting)

    def closes(self) -> None:
        """The server shuts down: keep what was learned of lengths since it was last written."""
        if self.lengths_file is not None:
            self.lengths_file.close()


def rids(requests: Iterable[Req]) -> list[str]:
    """Ids of these requests, in order."""
    return [request.rid for request in requests]
