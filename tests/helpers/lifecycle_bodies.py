"""The four bodies, each behind the same handful of questions, for the conformance suite."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
from fakes.sglang import Arrivals, Batch, Request, Scheduler

from tokenflow_sgl.contract import Decision, Phase, Write
from tokenflow_sgl.lab.sim.actuator import SimActuator
from tokenflow_sgl.lab.sim.ended_streams import EndedStreams
from tokenflow_sgl.lifecycle import Actuator, Applied, Missing, Phases, apply

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # SGLang's imports warn about third parties
    from fakes.engine import add, book_of, decode_body, placed_body, unified_body

    from tokenflow_sgl.engine.body.unified import UnifiedBody
    from tokenflow_sgl.engine.decode_server.decode_pauser import DecodePauser
    from tokenflow_sgl.engine.kv.preempt import Pauser
    from tokenflow_sgl.engine.layerwise.page_owners import PageOwners
    from tokenflow_sgl.engine.telemetry.sampling import Effort

NOW = 9.0
KV = 20
"""Tokens of KV of every stream."""


class Rig(Protocol):
    """A body with streams in it."""

    phases: Phases

    def add(self, phase: Phase) -> int:
        """A stream in this phase; returns its slot."""
        ...

    def prefill(self, slot: int) -> None:
        """This running stream is in the middle of its prefill."""
        ...

    def abort(self, slot: int) -> None:
        """The stream's client has gone."""
        ...

    def apply(self, decision: Decision) -> Applied:
        """Carry a decision out."""
        ...

    def free(self, tokens: int) -> None:
        """The device has this much free memory now."""
        ...

    @property
    def held(self) -> int:
        """Tokens that are kept on the device for streams that are loaded in part."""
        ...

    def land(self) -> None:
        """Results that are in flight are processed, and loads have landed."""
        ...

    @property
    def offered(self) -> list[int]:
        """Slots that admission sees, in their order."""
        ...


class Core(SimpleNamespace):
    """Stands in for the simulator's."""

    @property
    def batch(self) -> Any:
        """No stream ends here."""
        return self.running


class SimRig:
    """The simulator's body over a core that has memory for `free` tokens."""

    def __init__(self, free: int) -> None:
        self.phases = Phases(64)
        self._next = 0
        self._ends = 5.0
        zeros = np.zeros(64, dtype=np.int64)
        streams: Any = SimpleNamespace(
            phases=self.phases, prompt=zeros + KV, generated=zeros.copy()
        )
        self.memory = SimpleNamespace(free=free, evictable=lambda stream: 0)
        self._loaded: dict[int, int] = {}
        """By stream; what was given up is evicted at once."""
        self.core: Any = Core(
            ended=EndedStreams(streams),
            streams=streams,
            memory=self.memory,
            options=SimpleNamespace(page_size=1),
            running=zeros[:0],
            waiting=[],
            chunked=None,
            computed=0,
            full=True,
            write=lambda stream, now, most: most,
            unwritten=lambda rows: np.zeros(len(rows), dtype=np.int64),
            length=lambda rows: np.full(len(rows), KV),
            park=lambda stream, now: None,
            missing=lambda stream: KV - self._loaded.get(stream, 0),
            load=self._load,
            loaded=self._rest,
        )
        self.body = SimActuator(self.core)

    def _load(self, stream: int, tokens: int, now: float) -> float:
        self._loaded[stream] = self._loaded.get(stream, 0) + tokens
        self.memory.free -= tokens
        return NOW + 1.0

    def _rest(self, stream: int, now: float) -> None:
        self.memory.free += self._loaded[stream]
        if self._loaded[stream] < KV:
            del self._loaded[stream]

    def add(self, phase: Phase) -> int:
        slot, self._next = self._next, self._next + 1
        self.phases.arrive(slot, 1.0)
        if phase is Phase.WAITING:
            self.core.waiting.append(slot)
            return slot
        self.phases.move(slot, phase, 2.0)
        self.core.streams.generated[slot] = 5
        if phase is Phase.RUNNING:
            self.core.running = np.append(self.core.running, slot)
        elif phase is Phase.PAUSED:
            self.body.paused[slot] = None
        elif phase is Phase.DRAINING:
            self.body.draining.append(slot)
        return slot

    def prefill(self, slot: int) -> None:
        self.core.chunked = slot

    def free(self, tokens: int) -> None:
        self.memory.free = tokens

    @property
    def held(self) -> int:
        return sum(tokens for tokens in self._loaded.values() if tokens < KV)

    def abort(self, slot: int) -> None:
        if slot in self.phases.parts:
            self.body.give_up(slot)
        self.core.running = self.core.running[self.core.running != slot]
        self.body.paused.pop(slot, None)
        self.core.waiting = [other for other in self.core.waiting if other != slot]
        self.phases.leave(slot)

    def apply(self, decision: Decision) -> Applied:
        body: Actuator = self.body
        return apply(decision, self.phases, body, NOW)

    def land(self) -> None:
        self.body.begin(NOW + 2.0)

    @property
    def offered(self) -> list[int]:
        if self.body.offered is None:
            return [*sorted(self.body.paused), *self.core.waiting]
        return list(self.body.offered)


class LiveRig:
    """A body of the engine over a scheduler that has memory for `free` tokens.

    What is the same for all of them; `build` makes what differs.
    """

    def __init__(self, free: int) -> None:
        self.batch = Batch()
        self.loader = Loads(free)
        self.scheduler: Any = Scheduler(lambda: self.loader.free)
        self.book = book_of(self.scheduler, now=1.0)
        self.table, self.phases = self.book.table, self.book.table.phases
        self.body = self.build()
        self.pauser: Any = self.body.pauser

    def build(self) -> UnifiedBody:
        """The body. The one place that knows of what it is made."""
        raise NotImplementedError

    def add(self, phase: Phase) -> int:
        made, rid = 5, f"r{len(self.table)}"
        req = Request(rid, prompt=KV - made, made=made, row=len(self.table) + 1)
        slot = add(self.book, req, arrival=1.0, now=1.0)
        if phase is Phase.WAITING:
            self.wait(req)
            return slot
        self.table.move(req, phase, 2.0)
        if phase is Phase.RUNNING:
            self.batch.reqs.append(req)
            self.launch()
        elif phase is Phase.PAUSED:
            self.pauser.paused[req] = None
        elif phase is Phase.DRAINING:
            self.pauser.draining.append(req)
        return slot

    def wait(self, req: Any) -> None:
        """SGLang has queued this request."""
        self.scheduler.waiting_queue.append(req)

    def launch(self) -> None:
        """A step of what runs is in flight."""
        self.scheduler.result_queue = [(Batch(*self.batch.reqs), None)]

    def prefill(self, slot: int) -> None:
        req: Any = self.table.request(slot)
        req.prefix_len = req.seqlen
        self.scheduler.chunked_req = req

    def free(self, tokens: int) -> None:
        self.loader.free = tokens

    @property
    def held(self) -> int:
        return sum(self.loader.loaded[req] for req in self.loader.kept)

    def abort(self, slot: int) -> None:
        req: Any = self.table.request(slot)
        req.to_finish = "aborted"
        if req in self.pauser.paused:  # the core ends it in its next pass
            del self.pauser.paused[req]
            self.body.forget(req)
            self.book.forget(req, cut_off=True)

    def apply(self, decision: Decision) -> Applied:
        self.book.clock.at_least(NOW)
        self.body.begin(self.batch)
        body: Actuator = self.body
        return apply(decision, self.phases, body, NOW)

    def land(self) -> None:
        self.scheduler.result_queue = []
        self.book.clock.at_least(NOW + 2.0)
        self.pauser.finish_draining(lambda: set())
        self.body.landed(NOW + 2.0)

    @property
    def offered(self) -> list[int]:
        return [self.table.slot(req) for req in self.body.offered]


class EngineRig(LiveRig):
    """The body of a server that prefills and decodes, with HiCache."""

    def build(self) -> UnifiedBody:
        self.scheduler.enable_hierarchical_cache = True
        self.writer = SimpleNamespace(
            active=True, apply=lambda writes: sum(write.tokens for write in writes)
        )
        pauser = ReleasingPauser(None, lambda req: None, self.book.pauses)
        return unified_body(
            self.scheduler, self.book, pauser=pauser, writer=self.writer, loader=self.loader
        )


class DecodeRig(LiveRig):
    """The body of a decode server: a stream in its prefill is one whose KV is on its way.

    Attributes:
        host: Tokens that the host can still take.
    """

    host = 1000

    def build(self) -> UnifiedBody:
        self.arrivals = Arrivals()
        self.transfers = SimpleNamespace(queue=[])
        self.scheduler.disagg_decode_prealloc_queue = self.arrivals
        self.scheduler.disagg_decode_transfer_queue = self.transfers
        pauser, copies = HostPauser(self), NoCopies()
        return decode_body(self.scheduler, self.book, pauser=pauser, writer=copies, loader=copies)

    def wait(self, req: Any) -> None:
        self.arrivals.add(req)

    def prefill(self, slot: int) -> None:
        req: Any = self.table.request(slot)
        self.batch.reqs.remove(req)
        self.launch()
        self.transfers.queue.append(SimpleNamespace(req=req))

    @property
    def offered(self) -> list[int]:
        """Where nothing is chosen: what resumes, and what SGLang then sees of its queue."""
        offered = super().offered
        if self.body.chosen:
            return offered
        seen: list[Any] = []
        self.body.admit_arrivals(lambda: seen.extend(self.arrivals.queue), Effort())
        return [*offered, *(self.table.slot(each.req) for each in seen)]


class PlacedRig(LiveRig):
    """The body of a server whose KV is placed layer by layer, by pages of one token."""

    def build(self) -> UnifiedBody:
        executor = SimpleNamespace(
            owners=PageOwners(1000),
            plans=SimpleNamespace(paused=frozenset()),
            pages_at_once=int(self.scheduler.max_total_num_tokens),
            steps=0,
        )
        pool = SimpleNamespace(executor=executor, page_size=1)
        self.scheduler.token_to_kv_pool_allocator.pool = pool
        copies = NoCopies()
        return placed_body(self.scheduler, self.book, writer=copies, loader=copies)


class ReleasingPauser(Pauser):
    """A pauser whose releases touch no memory."""

    def _release(self, request: Any, keep: bool = True) -> None:
        self.hold(request)


class HostPauser(DecodePauser):
    """A decode server's, whose copies always end well and touch no memory."""

    _places = math.inf

    def __init__(self, rig: DecodeRig) -> None:
        super().__init__(rig.scheduler, rig.book, capacity=0)
        self._rig = rig

    @property
    def _room(self) -> int:
        return self._rig.host - sum(map(self._paged, self.paused))

    def _release(self, request: Any, keep: bool = True) -> None:
        self.hold(request)


class NoCopies:
    """What a body is given for its copies that makes none: to be asked for one fails."""

    active = taken = False
    request = None

    def __contains__(self, request: Any) -> bool:
        return False

    def apply(self, writes: Sequence[Write]) -> int:
        raise AssertionError("it copies where no copy can be made")

    def load(self, *_: Any) -> int:
        raise AssertionError("it loads what no copy was made of")

    def give_up(self, request: Any) -> None:
        """Nothing is loaded in part."""

    def landed(self) -> None:
        return None


class Loads:
    """A load ring with one copy at a time, over `free` tokens of memory.

    Attributes:
        loaded: Tokens of each request that are on the device; what was given up is evicted at once.
        kept: Requests that are loaded in part.
    """

    def __init__(self, free: int) -> None:
        self.free = free
        self.loaded: dict[Any, int] = {}
        self.kept: dict[Any, None] = {}
        self.request: Any = None

    def __contains__(self, request: Any) -> bool:
        return request is self.request or request in self.kept

    @property
    def taken(self) -> bool:
        return self.request is not None

    def missing(self, request: Any) -> Missing:
        return Missing(KV - self.loaded.get(request, 0))

    def load(self, request: Any, running: list[Any], tokens: int) -> int:
        self.free -= tokens
        self.loaded[request] = self.loaded.get(request, 0) + tokens
        self.request = request
        self.kept[request] = None
        if self.loaded[request] == KV:
            del self.kept[request]
        return tokens

    def give_up(self, request: Any) -> None:
        if request in self.kept:
            del self.kept[request]
            self.free += self.loaded.pop(request)

    def landed(self) -> Any:
        landed, self.request = self.request, None
        if landed is not None and landed not in self.kept:
            self.free += self.loaded.get(landed, 0)
        return landed
