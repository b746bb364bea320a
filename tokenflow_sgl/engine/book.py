"""The book of requests: which streams there are, whose readers, since when, and where they stand.

It knows requests of SGLang's and the table of streams, and no memory.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from sglang.srt.environ import envs
from sglang.srt.managers.utils import is_health_check_generate_req

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.engine.priority_scheduling import shown_priority
from tokenflow_sgl.engine.reasoning import Reasoning
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.worker import LiveScheduler
from tokenflow_sgl.engine.shared_clock import SharedClock, local_time
from tokenflow_sgl.engine.tenants import too_many
from tokenflow_sgl.engine.timeouts import PausedTime
from tokenflow_sgl.lifecycle.rest_ends import use_adapter
from tokenflow_sgl.lifecycle.table import Newcomer, StreamTable
from tokenflow_sgl.qos.classes import QosClass, QosClasses

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Book:
    """The streams of one scheduler.

    Attributes:
        scheduler: SGLang's.
        table: A row for each stream.
        clock: The time that this rank decides by.
        alone: No other rank has to come to the same decisions, so this one's clock will do.
        classes: What readers may be of.
        reasoning: Tells which output is reasoning.
        paused_time: How long each stream was paused.
        by_rid: Streams by the id of their request.
        undated: Requests whose arrival the leader's next tick will tell.
    """

    scheduler: LiveScheduler
    table: StreamTable[Any]
    clock: SharedClock
    alone: bool
    classes: QosClasses
    reasoning: Reasoning
    paused_time: PausedTime = field(default_factory=PausedTime)
    by_rid: dict[str, Any] = field(default_factory=dict)
    undated: list[Any] = field(default_factory=list)

    def full_tenants(self) -> list[str] | None:
        """Tenants that have as many streams as they may; None: they are not told apart."""
        tenants = self.table.tenants
        return None if tenants is None else tenants.all_full()

    def granted(self, req: Req, asked: QosClass, tenant: str | None) -> QosClass:
        """How a request is read, as far as its tenant may ask for it.

        One whose tenant has as many streams as it may is ended: HTTP 429.

        Args:
            req: SGLang's.
            asked: What it asks for.
            tenant: Key of who asks; None: tenants are not told apart.
        """
        tenants = self.table.tenants
        if tenants is None or tenant is None or req.to_finish is not None:
            return asked
        full = tenants.full(tenant)
        if full is not None and not is_health_check_generate_req(req):
            req.set_finish_with_abort(
                too_many(full), HTTPStatus.TOO_MANY_REQUESTS, "RateLimitError"
            )
        most = tenants.granted(tenants.number(tenant)).rate
        if most is None or not asked.reader or asked.rate <= most:
            return asked
        return dataclasses.replace(asked, rate=most)

    def arrives(
        self, req: Req, asked: QosClass, undisturbed: str | None, tenant: str | None = None
    ) -> None:
        """SGLang has queued a request: from now on it is a stream.

        Args:
            req: SGLang's.
            asked: How it is read.
            undisturbed: Why it must not be preempted; None: it may be.
            tenant: Key of who asks; None: tenants are not told apart.
        """
        if self.alone:
            # Now: SGLang's stamp of when it was created stays in the front end.
            self.clock.at_least(local_time())
        else:
            self.undated.append(req)
        newcomer = Newcomer(
            prompt=len(req.origin_input_ids),
            limit=req.sampling_params.max_new_tokens,
            arrival=self.clock.now,
            now=self.clock.now,
            streaming=bool(req.stream),
            thinking=self.reasoning.begins(req),
            hidden=self.reasoning.hidden,
            priority=shown_priority(self.scheduler, req),
            tenant=tenant,
        )
        slot = self.table.track(req, asked, newcomer)
        use_adapter(self.table, req, req.lora_id)
        self.by_rid[req.rid] = req
        if undisturbed is not None:
            self.table.preemptible[slot] = False
            logger.debug("request %s runs without preemption: %s", req.rid, undisturbed)

    def waits(self, req: Req) -> None:
        """A known stream is in SGLang's queue again."""
        self.table.move(req, Phase.WAITING, self.clock.now)

    def runs(self, req: Req) -> None:
        """A stream is in the batch from now on, or is about to join it; it may be there already."""
        self.paused_time.end(req)
        table = self.table
        if req in table and not table.phases.is_in(table.slot(req), Phase.RUNNING):
            table.move(req, Phase.RUNNING, self.clock.now)

    def pauses(self, req: Req) -> None:
        """A stream has left the device's rows: it waits as SGLang's own waiters do."""
        self.table.move(req, Phase.PAUSED, self.clock.now)
        self.paused_time.begin(req)
        self._send_unsent(req)
        self.scheduler._prefetch_kvcache(req)
        req.time_stats.set_wait_queue_entry_time()

    def forget(self, req: Req, *, cut_off: bool) -> None:
        """A stream is gone; cut_off: its output would have been longer."""
        self.table.forget(req, cut_off=cut_off)
        if req is self.by_rid.get(rid := req.rid):  # another one may have its id by now
            del self.by_rid[rid]
        self.paused_time.forget(req)

    def ended(self) -> list[Any]:
        """Streams that SGLang has finished, and that are still here."""
        return [req for req in self.table.active()[0] if req.finished_reason is not None]

    def redate(self) -> None:
        """The leader's clock has come: newcomers arrived at its time."""
        for req in self.undated:
            if req in self.table:
                self.table.redate(req, self.clock.now)
        self.undated.clear()

    def overdue(self, aborts: Sequence[Any]) -> list[Any]:
        """Which of SGLang's timeouts stand: time in which a stream was paused does not count.

        Args:
            aborts: What SGLang would abort for having run too long.
        """
        if not aborts:
            return []
        started = {req.rid: req for req in self.table.started()}
        named = [started[abort.rid] for abort in aborts if abort.rid in started]
        late = self.paused_time.overdue(named, envs.SGLANG_REQ_RUNNING_TIMEOUT.get())
        return [abort for abort in aborts if abort.rid not in started or abort.rid in late]

    def _send_unsent(self, req: Req) -> None:
        """Send what a paused stream has made, though SGLang's stream interval is not full yet.

        Its next tokens may be long in coming. What may be the beginning of a stop string is kept.
        """
        if not req.stream or req.send_token_offset >= len(req.output_ids):
            return
        sampling = req.sampling_params
        interval, sampling.stream_interval = sampling.stream_interval, 1
        try:
            self.scheduler.output_streamer.stream_output([req], req.return_logprob)
        finally:
            sampling.stream_interval = interval
