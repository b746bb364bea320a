"""SGLang's loop around real restorations: device, link and queue in virtual time, and no server.

One step is launched while the one before it runs, as with overlap scheduling, so that each pass
decides what follows the step under way. Prompts come first come first served, at most one of them
is prefilled in part, and a step is filled up. Step times are a profile's; the link loads one batch
after the other. TTFT of batches on a live server, in virtual time, were within 1 % of it
(benchmarks/restoration/batches.py).
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from fakes.sglang import Request
from restored_tree import Tree, operation, patch_heads, patch_join
from sglang.srt.managers.schedule_policy import AddReqResult

from tokenflow_sgl.costs import attention_work
from tokenflow_sgl.engine.restore.leader_figures import LeaderFigures
from tokenflow_sgl.engine.restore.planners import make_planner
from tokenflow_sgl.engine.restore.restoration_record import RestorationRecord
from tokenflow_sgl.engine.restore.restorations import Restorations
from tokenflow_sgl.engine.restore.restore_adder import restoring_adder
from tokenflow_sgl.engine.restore.tail_fetch import BATCH_SECONDS, BATCH_TOKENS
from tokenflow_sgl.engine.telemetry.prometheus import Recorder
from tokenflow_sgl.lab.profiles import DeviceProfile

PAGE = 64


class Adder:
    """How SGLang fills a step while there is memory."""

    page_size = PAGE

    def __init__(self, tree: Any, chunk: int) -> None:
        self.tree_cache, self.rem_chunk_tokens = tree, chunk
        self.can_run_list: list[Any] = []
        self.new_chunked_req: Any = None
        self.chunked_req_limit: int | None = None
        self.log_device_hit_tokens = self.log_hit_tokens = 0
        self.memory_budget = SimpleNamespace(reserve=lambda tokens, answer: None)

    def budget_state(self) -> Any:
        return AddReqResult.CONTINUE if self.rem_chunk_tokens > 0 else AddReqResult.OTHER

    def add_one_req(self, req: Any, has_chunked_req: bool) -> Any:
        found = self._select_prefill_admission(req, has_chunked_req=has_chunked_req)
        if isinstance(found, AddReqResult):
            return found
        self._account_prefill_cache_admission(req, req.prefix_len)
        if found.is_chunked:
            self.new_chunked_req = req
        self._add_to_step(req, found.tokens)
        return self.budget_state()

    def add_chunked_req(self, req: Any) -> Any:
        limit = min(self.rem_chunk_tokens, self.chunked_req_limit or self.rem_chunk_tokens)
        left = len(req.full_untruncated_fill_ids) - req.prefix_len
        self._add_to_step(req, min(left, limit))
        return req if limit < left else None

    def _add_to_step(self, req: Any, tokens: int) -> None:
        req.extend_end = req.prefix_len + tokens
        self.can_run_list.append(req)
        self.rem_chunk_tokens -= math.ceil(tokens / PAGE) * PAGE

    def _select_prefill_admission(self, req: Any, *, has_chunked_req: bool = False) -> Any:
        left = len(req.full_untruncated_fill_ids) - req.prefix_len
        chunked = math.ceil(left / PAGE) * PAGE > self.rem_chunk_tokens
        return SimpleNamespace(
            tokens=self.rem_chunk_tokens if chunked else left, is_chunked=chunked
        )

    def _account_prefill_cache_admission(self, req: Any, prefix_len: int) -> None: ...


class RestoringLoop:
    """Prompts that come at the same time, and whose prefixes lie in the storage.

    Args:
        monkeypatch: For what SGLang's tree does.
        profile: The device.
        prefixes: Tokens of each.
        suffix: Tokens behind each.
        rate: Tokens per second of the link.
        chunk: Tokens of a step.

    Attributes:
        ttft: Seconds, of each in their order.
        computing: Seconds in which the device worked.
    """

    def __init__(
        self,
        monkeypatch: Any,
        profile: DeviceProfile,
        prefixes: tuple[int, ...],
        *,
        suffix: int,
        rate: float,
        chunk: int,
    ) -> None:
        where = "tokenflow_sgl.engine.restore.restorable.undisturbed_reason"
        monkeypatch.setattr(where, lambda request: None)
        patch_heads(monkeypatch, lambda tree, request: self._computed[request.rid])
        patch_join(monkeypatch, self._joined)
        self._profile, self._rate, self._chunk = profile, rate, chunk
        self._tree = Tree()
        self._tree.page_size = PAGE
        record = RestorationRecord(Recorder(), None)
        self._all = Restorations(
            self._tree, chunk, make_planner("auto"), record, lambda request: None
        )
        self._adder = restoring_adder(Adder, self._all, None)
        self._computed: dict[int, int] = {}
        self._queue: list[Request] = []
        self._fetches: list[Any] = []
        self._lands = math.inf
        self._chunked: Any = None
        self._now = self._free_at = self.computing = 0.0
        self._decoding: dict[int, int] = {}
        self._ends: dict[int, float] = {}
        for rid, prefix in enumerate(prefixes):
            self._begin(rid, prefix, suffix)
        self._next_batch()
        while len(self._ends) < len(prefixes):
            self._pass()
        self.ttft = [self._ends[rid] for rid in range(len(prefixes))]

    def _begin(self, rid: int, prefix: int, suffix: int) -> None:
        request = Request(
            rid=rid,
            cache_request_handle=rid,
            positional_embed_overrides=None,
            full_untruncated_fill_ids=[0] * (prefix + suffix),
            prefix_len=0,
            already_computed=0,
            best_match_node="head",
            sampling_params=SimpleNamespace(max_new_tokens=1),
        )
        fetch = operation()
        fetch.handle = rid
        info = SimpleNamespace(operation=fetch, host_indices=None)
        self._tree.ongoing_prefetch[rid] = info
        self._all.watch(request)
        tail = fetch.tokenflow_tail
        tail.copies.give_back()  # it needs no memory here
        tail.end, tail.batch = prefix, max(int(self._batch_tokens()) // PAGE, 1)
        fetch.host_indices = info.host_indices = range(prefix)
        fetch.hash_value = [f"{rid}, {page}" for page in range(prefix // PAGE)]
        tail.allocated(prefix)
        self._computed[rid] = 0
        self._queue.append(request)
        self._fetches.append(fetch)

    def _batch_tokens(self) -> float:
        least, most = BATCH_TOKENS
        return min(max(self._rate * BATCH_SECONDS, least), most)

    # ---- the link ---------------------------------------------------------------------

    def _next_batch(self, began: float = 0.0) -> None:
        """Begin the next one; a fetch that has brought enough, or was dropped, ends."""
        self._lands = math.inf
        while self._fetches:
            fetch = self._fetches[0]
            left = (
                min(len(fetch.host_indices), fetch.tokenflow_tail.enough) - fetch.completed_tokens
            )
            if self._under_way(fetch) and left > 0:
                self._lands = began + self._batch_of(fetch) / self._rate
                return
            self._fetches.pop(0)
            if self._under_way(fetch):
                self._all.open.keeps(fetch)

    def _batch_of(self, fetch: Any) -> int:
        left = len(fetch.host_indices) - fetch.completed_tokens
        return int(min(fetch.tokenflow_tail.batch * PAGE, left))

    def _under_way(self, fetch: Any) -> bool:
        info = self._tree.ongoing_prefetch.get(fetch.handle)
        return info is not None and info.operation is fetch

    def _land(self) -> None:
        while self._lands <= self._now:
            fetch = self._fetches[0]
            fetch.completed_tokens += self._batch_of(fetch)
            self._next_batch(self._lands)

    def _joined(self, tree: Any, request: Any, fetch: Any, head: int, end: int, got: int) -> int:
        self._computed[request.rid] = end
        del tree.ongoing_prefetch[request.rid]
        return end - head

    # ---- the device -------------------------------------------------------------------

    def _pass(self) -> None:
        self._land()
        step_end = self._free_at
        if self._all.open.any:
            self._all.begin_pass(self._measured(step_end), 0, self._chunked)
            if self._chunked is not None and self._all.next_chunk(self._chunked) == 0:
                request, self._chunked = self._chunked, None
                self._computed[request.rid] = request.already_computed = request.extend_end
                self._queue.insert(0, request)
        step = self._prefill()
        if step:
            tokens = sum(request.extend_end - request.prefix_len for request in step)
            work = sum(
                attention_work(float(one.extend_end - one.prefix_len), float(one.prefix_len))
                for one in step
            )
            seconds = self._profile.prefill_seconds(tokens, work)
        elif self._decoding:
            context = sum(self._decoding.values())
            seconds = self._profile.decode_seconds(len(self._decoding), context)
            self._decoding.clear()  # a second token is all that they want
        else:  # on to what happens next
            self._now = min(time for time in (step_end, self._lands) if time > self._now)
            return
        begins = max(self._now, step_end)
        self._free_at, self._now = begins + seconds, begins
        self.computing += seconds
        for request in step:
            if request.extend_end == len(request.full_untruncated_fill_ids):
                self._ends[request.rid] = self._free_at
                self._decoding[request.rid] = request.extend_end

    def _prefill(self) -> list[Any]:
        """The requests of the next step, as SGLang's scheduler chooses them."""
        adder = self._adder(self._tree, self._chunk)
        if self._chunked is not None:
            self._chunked.prefix_len = self._chunked.extend_end
            self._chunked = adder.add_chunked_req(self._chunked)
        for request in list(self._queue):
            if adder.budget_state() is not AddReqResult.CONTINUE:
                break
            if self._all.may_start(request.rid) is False:
                continue
            request.prefix_len = self._computed[request.rid]
            if adder.add_one_req(request, self._chunked is not None) is not AddReqResult.CONTINUE:
                break
        if adder.new_chunked_req is not None:
            assert self._chunked is None, "SGLang prefills one prompt in part at a time"
            self._chunked = adder.new_chunked_req
        self._queue = [one for one in self._queue if one not in adder.can_run_list]
        return list(adder.can_run_list)

    def _measured(self, step_end: float) -> LeaderFigures:
        """As a server has learned them: a line through two steps, which is close."""
        long, short = float(self._chunk), 256.0
        near, far, some = (
            attention_work(tokens, prefix)
            for tokens, prefix in ((long, 0.0), (long, 16384.0), (short, 0.0))
        )
        seconds = self._profile.prefill_seconds
        per_work = (seconds(self._chunk, far) - seconds(self._chunk, near)) / (far - near)
        flat = seconds(256, some) - per_work * some
        per_token = (seconds(self._chunk, near) - per_work * near - flat) / (long - short)
        constant = flat - per_token * short
        shortest = self._profile.decode_seconds(1, 0)
        return LeaderFigures(
            self._now, self._rate, step_end, (constant, per_token, per_work), shortest
        )
