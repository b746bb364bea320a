"""The engine's parts over SGLang's objects that only pretend, each built as `engine.build` does it.

What a test leaves out is as of a server that prefills and decodes, on one rank, without HiCache and
without extensions.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tracked import track

from fakes.sglang import parts
from tokenflow_sgl.contract import Decision, Mode, State
from tokenflow_sgl.costs import StepTimer
from tokenflow_sgl.engine.admission import PolicedAdmission
from tokenflow_sgl.engine.body.decode import DecodeBody, DecodeMemory
from tokenflow_sgl.engine.body.placed import PlacedBody
from tokenflow_sgl.engine.body.unified import StreamMemory, UnifiedBody
from tokenflow_sgl.engine.book import Book
from tokenflow_sgl.engine.config import TokenFlowConfig
from tokenflow_sgl.engine.core import Core, Meters
from tokenflow_sgl.engine.decode_server.decode_pauser import DecodePauser
from tokenflow_sgl.engine.drafts import Drafts
from tokenflow_sgl.engine.extension import Extensions
from tokenflow_sgl.engine.kv.device_pools import DevicePools
from tokenflow_sgl.engine.kv.link_rates import TransferWatch
from tokenflow_sgl.engine.kv.load_ring import Loader
from tokenflow_sgl.engine.kv.preempt import Pauser
from tokenflow_sgl.engine.kv.write import Writer
from tokenflow_sgl.engine.layerwise.placed_pauser import PlacedPauser
from tokenflow_sgl.engine.reasoning import Reasoning
from tokenflow_sgl.engine.shared_clock import SharedClock
from tokenflow_sgl.engine.shell import TokenFlowScheduler
from tokenflow_sgl.engine.telemetry.decision_log import DecisionListener
from tokenflow_sgl.engine.telemetry.headroom_watch import HeadroomWatch
from tokenflow_sgl.engine.telemetry.prometheus import Recorder
from tokenflow_sgl.engine.telemetry.sampling import DeliveryReporter, Effort
from tokenflow_sgl.engine.view import View
from tokenflow_sgl.lifecycle import Decider
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.policy.predictors import LimitLengths
from tokenflow_sgl.qos.classes import SHIPPED_CLASSES


def book_of(scheduler: Any, *, alone: bool = True, now: float = 0.0) -> Book:
    """A book without streams, whose clock says `now`."""
    table: StreamTable[Any] = StreamTable(LimitLengths(), capacity=64)
    model = SimpleNamespace(think_end_ids=None, self_opened_think_start_ids=None)
    clock = SharedClock()
    clock.at_least(now)
    return Book(scheduler, table, clock, alone, SHIPPED_CLASSES, Reasoning(model, None))


def add(book: Book, req: Any, **given: Any) -> int:
    """Make a request a stream that waits, since the time of the book's clock; returns its slot."""
    now = book.clock.now
    asked = {
        "prompt": len(req.origin_input_ids),
        "limit": 99,
        "rate": 10.0,
        "qos_class": "reading",
        "arrival": now,
        "now": now,
    }
    book.by_rid[req.rid] = req
    return track(book.table, req, **{**asked, **given})


def memory_of(
    scheduler: Any, book: Book, *, loader: Any = None, writer: Any = None
) -> StreamMemory:
    """What copies KV of these streams."""
    tree = scheduler.tree_cache
    return StreamMemory(
        DevicePools(scheduler),
        writer or Writer(tree, book.table, Recorder(), int(scheduler.page_size)),
        loader or Loader(tree),
        TransferWatch(tree.cache_controller, Recorder()),
    )


def unified_body(
    scheduler: Any,
    book: Book,
    *,
    pauser: Any = None,
    extensions: Extensions | None = None,
    **memory: Any,
) -> UnifiedBody:
    """The body of a server that prefills and decodes; memory: as of `memory_of`."""
    pauser = pauser or Pauser(scheduler.tree_cache, lambda req: None, book.pauses)
    built = memory_of(scheduler, book, **memory)
    return UnifiedBody(scheduler, book, built, pauser, extensions or Extensions(), Recorder())


def decode_body(
    scheduler: Any, book: Book, *, pauser: Any = None, loads: Any = None, **memory: Any
) -> DecodeBody:
    """The body of a decode server; memory: as of `memory_of`."""
    pauser = pauser or DecodePauser(scheduler, book, capacity=1000)
    built = memory_of(scheduler, book, **memory)
    own = DecodeMemory(built.pools, built.writer, built.loader, built.watch, loads)
    return DecodeBody(scheduler, book, own, pauser, Extensions(), Recorder())


def placed_body(scheduler: Any, book: Book, *, pauser: Any = None, **memory: Any) -> PlacedBody:
    """The body of a server with layer-wise KV; memory: as of `memory_of`."""
    pauser = pauser or PlacedPauser(scheduler.tree_cache, lambda req: None, book.pauses)
    built = memory_of(scheduler, book, **memory)
    return PlacedBody(scheduler, book, built, pauser, Extensions(), Recorder())


class Says:
    """A policy that always answers the same."""

    def __init__(self, decision: Decision | None = None) -> None:
        self.decision = decision or Decision(Mode.IDLE)

    def decide(self, state: State) -> Decision:
        return self.decision


def core_of(
    scheduler: Any,
    book: Book | None = None,
    body: UnifiedBody | None = None,
    *,
    extensions: Extensions | None = None,
    policy: Any = None,
    recorder: Recorder | None = None,
    **more: Any,
) -> Core:
    """A core; more: its agreement, its file of lengths, its log."""
    config, extensions = TokenFlowConfig(mixed_chunk="off"), extensions or Extensions()
    recorder, book = recorder or Recorder(), book or book_of(scheduler)
    body = body or unified_body(scheduler, book, extensions=extensions)
    timer, effort, table = StepTimer(lag=0), Effort(), book.table
    return Core(
        scheduler=scheduler,
        book=book,
        body=body,
        decider=Decider(policy or Says(), "says", table.phases, DecisionListener(recorder, None)),
        view=View(scheduler, book, body, timer),
        gate=PolicedAdmission(scheduler, body, config),
        meters=Meters(
            recorder,
            timer,
            effort,
            DeliveryReporter(table, recorder, timer, effort),
            HeadroomWatch(config.working_set, recorder),
        ),
        drafts=Drafts(scheduler),
        extensions=extensions,
        **more,
    )


def channels_to(told: Callable[[Any], object]) -> SimpleNamespace:
    """SGLang's channels to its other processes; `told` of each request that the client hears of."""
    sender = SimpleNamespace(send_output=lambda _message, req: told(req))
    return SimpleNamespace(send_to_tokenizer=sender)


class BareScheduler(TokenFlowScheduler):
    """Our shell over SGLang's scheduler, of which there is only what a test gives.

    Args:
        build: Makes the core.
        free: KV tokens that are free on the device.
        more: Of `fakes.sglang.parts`.
    """

    def __init__(
        self,
        build: Callable[[Any], Core] = core_of,
        free: Callable[[], int] = lambda: 1000,
        **more: Any,
    ) -> None:
        self.__dict__.update(parts(free, **more))
        self.tokenflow = build(self)
