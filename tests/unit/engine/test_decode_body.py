"""What SGLang sees of a decode server's queue, and what joins its batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.engine import BareScheduler, add, book_of, core_of, decode_body, memory_of
from fakes.sglang import Arrivals, Batch, Request, Tree
from sglang.srt.managers import schedule_batch
from sglang.srt.managers.scheduler import Scheduler

from tokenflow_sgl.contract import Growth, Phase
from tokenflow_sgl.engine.body import decode
from tokenflow_sgl.engine.decode_server import decode_pauser
from tokenflow_sgl.engine.extension import Extensions
from tokenflow_sgl.engine.kv.link_rates import TransferWatch
from tokenflow_sgl.engine.telemetry.prometheus import Recorder
from tokenflow_sgl.engine.telemetry.sampling import Effort


@pytest.fixture(autouse=True)
def options(monkeypatch) -> SimpleNamespace:
    """SGLang's of a decode server, where a body looks at them."""
    found = SimpleNamespace(
        disaggregation_decode_polling_interval=1,
        disaggregation_decode_retraction_backup="cpu_tensor",
        hicache_ratio=2.0,
    )
    monkeypatch.setattr(decode, "get_memory", lambda: found)
    for module in (decode, decode_pauser):
        monkeypatch.setattr(module, "get_disagg", lambda: found)
    return found


class Loads:
    """Copies of these streams are under way."""

    def __init__(self, *coming: Request) -> None:
        self.under_way = dict.fromkeys(coming)
        self.told: list[str] = []

    def coming(self, *, alone: bool) -> dict[Any, None]:
        if alone:
            self.settle()
        return self.under_way

    def settle(self) -> None:
        self.told.append("settled")
        self.under_way.clear()

    def end(self, request: Request) -> None:
        self.told.append(request.rid)


class DecodeServer:
    """A decode server's scheduler: four requests arrive, of which the last one is no stream."""

    def __init__(self, loads: Any = None) -> None:
        self.loads = loads
        self.requests = [Request(name, prompt=3, made=2) for name in "abcd"]
        self.queue = Arrivals(*self.requests)
        self.transfers = SimpleNamespace(queue=[])
        self.scheduler = BareScheduler(
            self._build,
            req_to_token_pool=None,
            disagg_decode_prealloc_queue=self.queue,
            disagg_decode_transfer_queue=self.transfers,
        )
        self.core: Any = self.scheduler.tokenflow
        self.body, self.book, self.table = self.core.body, self.core.book, self.core.table

    def _build(self, scheduler: Any) -> Any:
        book = book_of(scheduler, now=1.0)
        for req in self.requests[:3]:
            add(book, req)
        return core_of(scheduler, book, decode_body(scheduler, book, loads=self.loads))

    def choose(self, *chosen: Request) -> None:
        """The policy has chosen these, in their order."""
        self.body.offer([self.table.slot(req) for req in chosen], frozenset(), frozenset())

    def leave_it_to_sglang(self, hidden: tuple[Request, ...] = ()) -> None:
        """The policy has chosen nothing; what is hidden is so all the same."""
        self.body.offer(None, frozenset(), frozenset(map(self.table.slot, hidden)))

    def pause(self, rid: str) -> Request:
        """A further stream, which is paused."""
        req = Request(rid)
        add(self.book, req)
        self.book.runs(req)
        self.body.pauser.hold(req)
        return req

    def seen(self, take: Callable[[], None] = lambda: None) -> list[str]:
        """Names that SGLang sees in its queue when it gives memory away, before it does `take`."""
        names: list[str] = []

        def admit() -> None:
            names.extend(self.queue.names)
            take()

        self.body.begin(Batch())
        self.body.admit_arrivals(admit, Effort())
        return names

    def phase(self, req: Request) -> Phase:
        return Phase(int(self.table.phases.phase[self.table.slot(req)]))


@pytest.fixture
def server() -> DecodeServer:
    return DecodeServer()


# ---- what is given memory -----------------------------------------------------------


def test_sglang_sees_what_was_chosen_in_its_order_and_strangers_first(server) -> None:
    server.choose(server.requests[2], server.requests[0])

    def give() -> None:
        server.queue.remove(server.requests[2])
        server.transfers.queue.append(SimpleNamespace(req=server.requests[2]))

    assert server.seen(give) == ["d", "c", "a"], "d is a health check, say"
    assert server.queue.names == ["a", "b", "d"], "in their order of arrival"
    assert server.queue.polls == 1
    assert server.phase(server.requests[2]) is Phase.RUNNING, "it has its memory"
    assert server.phase(server.requests[0]) is Phase.WAITING


def test_what_arrives_meanwhile_stays_behind_the_others(server) -> None:
    server.choose(server.requests[0])
    late = Request("e")
    server.seen(lambda: server.queue.add(late))
    assert server.queue.names == ["a", "b", "c", "d", "e"]


def test_sglang_sees_its_whole_queue_again_when_it_fails(server) -> None:
    server.choose(server.requests[0])
    with pytest.raises(ZeroDivisionError):
        server.seen(lambda: 1 // 0)
    assert server.queue.names == ["a", "b", "c", "d"]


def test_what_failed_or_is_not_ready_is_not_hidden_and_comes_last(server) -> None:
    server.choose(server.requests[2])
    server.queue.queue[0].waiting_for_input = False
    server.requests[1].finished_reason = "aborted"
    assert server.seen() == ["d", "c", "a", "b"]
    assert server.queue.names == ["a", "b", "c", "d"]


def test_without_a_choice_sglang_sees_all(server) -> None:
    server.leave_it_to_sglang()
    assert server.seen() == ["a", "b", "c", "d"]
    assert server.queue.polls == 0


def test_without_a_choice_sglang_does_not_see_what_rests(server) -> None:
    server.leave_it_to_sglang(hidden=(server.requests[1],))
    assert server.seen() == ["d", "a", "c"]
    assert server.queue.names == ["a", "b", "c", "d"]


def test_without_a_choice_paused_streams_go_first(server) -> None:
    """As what SGLang has retracted does: nothing new is taken in while it waits."""
    paused = server.pause("p")
    server.queue.fits = False
    server.leave_it_to_sglang()
    assert server.seen() == ["d"]
    server.leave_it_to_sglang(hidden=(paused,))  # its reader rests
    assert server.seen() == ["a", "b", "c", "d"]


def test_what_becomes_ready_only_in_some_passes_is_looked_for_in_these(server, options) -> None:
    """SGLang polls in every third pass: what it finds ready then must have been chosen."""
    options.disaggregation_decode_polling_interval = 3
    polls = []
    for server.scheduler.polling_count in range(3):
        server.choose(server.requests[0])
        server.seen()
        polls.append(server.queue.polls)
    assert polls == [0, 0, 1]


def test_paused_streams_that_were_chosen_resume_before_sglang_admits(server) -> None:
    paused, other = server.pause("p"), server.pause("q")
    server.choose(server.requests[0], paused)

    def admits() -> None:
        assert server.scheduler.waiting_queue == [paused]
        assert not server.queue.retracted_queue, "or SGLang would take nothing else in"

    assert server.seen(admits) == ["d", "a"]
    assert server.phase(paused) is Phase.RUNNING
    assert server.phase(other) is Phase.PAUSED
    assert list(server.body.pauser.paused) == [other]


def test_reserves_are_the_operators_unless_the_policy_decides(server, options) -> None:
    def reserve() -> int:
        server.seen()
        return server.queue.num_reserved_decode_tokens

    headroom = Growth(16).headroom
    server.body.growth = Growth(16)
    server.choose(server.requests[0])
    assert reserve() == headroom < 512
    server.body.pauser.capacity = -1  # the host is full
    assert reserve() == 512
    server.body.pauser.capacity = 1000
    assert reserve() == headroom
    server.leave_it_to_sglang()
    assert reserve() == 512


# ---- how it is built ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "total", "page", "streams"),
    [(2.0, 0, 1, math.inf), (2.0, 1000, 1, 15), (6.0, 2304, 256, 27)],
)
def test_as_many_streams_are_kept_as_hicache_has_windows_for(
    server, options, ratio, total, page, streams
) -> None:
    """A window of 128 tokens is in two pages, if these are large."""
    options.hicache_ratio = ratio
    body = built(server.scheduler, window_total=total, page=page)
    assert body.pauser._places == streams
    assert body.host_tokens() == int(ratio * 4096)


def built(scheduler: Any, *, window_total: int, page: int = 1) -> Any:
    """The body of this scheduler, as a server builds it."""
    vars(scheduler).update(max_total_num_tokens=4096, page_size=page, sliding_window_size=128)
    book = book_of(scheduler)
    memory = memory_of(scheduler, book)
    memory.pools.window_total = window_total
    return decode.decode_body(scheduler, book, memory, Extensions(), Recorder())


@pytest.mark.parametrize("backup", ["cpu_tensor", "host_pool"])
def test_loads_overlap_where_kv_is_in_a_pool(server, options, backup) -> None:
    options.disaggregation_decode_retraction_backup = backup
    controller = SimpleNamespace(
        l2_transfer_engine=SimpleNamespace(), mem_pool_host=SimpleNamespace(size=8192)
    )
    server.scheduler.tree_cache = Tree(cache_controller=controller)
    body = built(server.scheduler, window_total=0)
    overlaps = backup == "host_pool"
    assert (body.memory.loads is not None) is overlaps
    assert (type(body.memory.watch) is not TransferWatch) is overlaps


# ---- requests come and end ----------------------------------------------------------


@pytest.mark.parametrize("loses", [True, False])
def test_what_sglang_retracts_waits_for_the_prefill_server_only_if_it_is_lost(
    monkeypatch, server, loses
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        Scheduler, "_add_request_to_queue", lambda _self, req, is_retracted: asked.append(req)
    )
    server.body.pauser.retraction_loses = loses
    req = server.requests[0]
    server.book.runs(req)
    server.scheduler._add_request_to_queue(req, is_retracted=True)
    assert asked == ([req] if loses else [])
    assert list(server.body.pauser.paused) == ([] if loses else [req])
    assert server.phase(req) is (Phase.WAITING if loses else Phase.PAUSED)
    assert req in server.book.paused_time._since, "it is no reason for a timeout"


def test_an_arrival_is_the_newest_of_the_queue(server) -> None:
    assert server.body.newest([]) is server.requests[3]
    server.queue.queue.clear()
    assert server.body.newest([object()]) is None


def test_what_waits_to_be_computed_again_can_be_aborted(monkeypatch, server) -> None:
    for req in server.requests:
        req.output_ids, req.pd_rebootstrap_forced_output_id = [1, 2], 3
    server.queue.queue.clear()
    server.queue.held_rebootstrap_reqs = server.requests[:3]
    released: list[str] = []

    def sglangs_own(self: Any, message: Any) -> None:
        (batch,) = self._collect_inflight_batches()
        for req in batch.reqs:
            if req.rid == message.rid:
                req.to_finish = "aborted"

    monkeypatch.setattr(Scheduler, "_collect_inflight_batches", lambda self: [])
    monkeypatch.setattr(Scheduler, "abort_request", sglangs_own)
    monkeypatch.setattr(
        Scheduler, "_release_aborted_request", lambda self, req: released.append(req.rid)
    )
    monkeypatch.setattr(
        schedule_batch.ScheduleBatch, "__init__", lambda self, reqs: setattr(self, "reqs", reqs)
    )
    server.scheduler.abort_request(SimpleNamespace(rid="b", abort_all=False))
    told = server.scheduler.output_streamer.sent
    assert told == [("b", [1, 2, 3])], "with the token that SGLang had put aside"
    assert released == ["b"]
    assert [req.rid for req in server.queue.held_rebootstrap_reqs] == ["a", "c"]
    assert server.requests[1] not in server.table


def test_a_server_with_paused_streams_is_not_idle(monkeypatch, server) -> None:
    """Their only KV is in the pool that a flush empties, whatever waits beside them."""
    monkeypatch.setattr(Scheduler, "is_fully_idle", lambda self, *_how: True)
    assert server.scheduler.is_fully_idle(ignore_waiting=True)
    server.pause("p")
    assert not server.scheduler.is_fully_idle(ignore_waiting=True)


def test_what_the_engine_throws_out_waits_as_arrivals_do(monkeypatch, server) -> None:
    """A pause with mode retract: a prefill server computes its KV again."""
    req = server.requests[0]
    server.book.runs(req)

    def sglangs_own(self: Any, message: Any) -> None:
        server.queue.remove(req)
        server.queue.hold_rebootstrap(req)

    monkeypatch.setattr(Scheduler, "pause_generation", sglangs_own)
    server.scheduler.pause_generation(SimpleNamespace(mode="retract"))
    assert server.phase(req) is Phase.WAITING


# ---- what joins the batch -----------------------------------------------------------


@pytest.fixture
def joining(monkeypatch) -> Callable[..., DecodeServer]:
    """Makes a server three of whose streams wait for the batch; SGLang takes in all it sees."""

    def sglangs_own(self: Any, _running: Any) -> Any:
        joined, self.waiting_queue = self.waiting_queue, []
        return SimpleNamespace(reqs=joined) if joined else None

    monkeypatch.setattr(Scheduler, "get_new_prebuilt_batch", sglangs_own)

    def made(loads: Any = None) -> DecodeServer:
        server = DecodeServer(loads)
        server.scheduler.waiting_queue = server.requests[:3]
        return server

    return made


@pytest.mark.parametrize(("alone", "joins"), [(False, ["a", "c"]), (True, ["a", "b", "c"])])
def test_a_stream_whose_kv_is_on_its_way_joins_later(joining, alone, joins) -> None:
    server = joining(loads := Loads())
    loads.under_way[server.requests[1]] = None
    running = Batch() if alone else Batch(Request("runs"))
    batch = server.scheduler.get_new_prebuilt_batch(running)
    assert [req.rid for req in batch.reqs] == joins
    left = [req for req in server.requests[:3] if req.rid not in joins]
    assert server.scheduler.waiting_queue == left, "for SGLang it waits: it can be aborted, say"
    assert all(server.phase(req) is Phase.RUNNING for req in batch.reqs)


def test_with_tensors_all_join(joining) -> None:
    server = joining()
    batch = server.scheduler.get_new_prebuilt_batch(Batch(Request("runs")))
    assert len(batch.reqs) == 3
    assert not server.scheduler.waiting_queue
    assert server.scheduler.get_new_prebuilt_batch(Batch()) is None


def test_copies_end_before_memory_is_given_away(monkeypatch, joining) -> None:
    server = joining(loads := Loads())
    for name in ("_release_aborted_request", "pause_generation"):
        monkeypatch.setattr(
            Scheduler, name, lambda _self, _given: loads.told.append("SGLang's own")
        )
    monkeypatch.setattr(
        decode_pauser,
        "discard_kv_cache_backup",
        lambda req, *_where: loads.told.append(f"discarded {req.rid}"),
    )
    req = server.requests[0]
    req.kv.retraction_backup = object()
    server.scheduler._release_aborted_request(req)
    assert loads.told == ["a", "discarded a", "SGLang's own"]
    assert req not in server.table
    loads.told.clear()
    server.scheduler.pause_generation(SimpleNamespace(mode="retract"))
    assert loads.told == ["settled", "SGLang's own"]
