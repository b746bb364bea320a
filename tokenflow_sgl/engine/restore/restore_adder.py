"""Admission of requests that are restored: chunks of their prompts end where the tail begins."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from sglang.srt.managers.schedule_policy import (
    CLIP_MAX_NEW_TOKENS,
    AddReqResult,
    PrefillAdder,
)

from tokenflow_sgl.engine.prefill_adder import whole_chunk
from tokenflow_sgl.engine.restore.prefix_in_tree import RECOMPUTED, keep_hits
from tokenflow_sgl.engine.restore.restorations import Restorations
from tokenflow_sgl.engine.sglang.overriding import checked, overrides
from tokenflow_sgl.engine.sglang.request import Req


def restoring_adder(
    base: type[PrefillAdder],
    restorations: Restorations,
    align: int | None,
    unmix: Callable[[], None] = lambda: None,
) -> type[PrefillAdder]:
    """A PrefillAdder like `base` that serves restorations; one class per scheduler.

    align: tokens that the engine cuts chunks of prompts into; None: pages. unmix: lets the step
    that is being filled have no decoding rows.
    """

    @checked
    class RestoringAdder(base):  # type: ignore[misc]
        # SGLang's own, which this class also assigns.
        rem_chunk_tokens: int
        chunked_req_limit: int | None
        tree_cache: Any
        log_device_hit_tokens: int
        log_hit_tokens: int
        memory_budget: Any

        @overrides("admits a request whose head is to be computed")
        def add_one_req(self, req: Req, has_chunked_req: bool, *args: Any, **kwargs: Any) -> Any:
            result = self._add(req, has_chunked_req, *args, **kwargs)
            if result is AddReqResult.NO_TOKEN and not self._added(req):
                missing = len(req.full_untruncated_fill_ids) - int(req.prefix_len)
                restorations.copy_memory.give_back(missing + _answer(req))
            return result

        def _added(self, req: Req) -> bool:
            return bool(self.can_run_list) and self.can_run_list[-1] is req

        def _divided(self, req: Req) -> bool:
            return self.new_chunked_req is req

        def _add(self, req: Req, has_chunked_req: bool, *args: Any, **kwargs: Any) -> Any:
            if restorations.layered.starts(req):
                return self._add_by_layers(req, has_chunked_req, *args, **kwargs)
            head = restorations.chunk_of(req)
            if head is None:
                result = super().add_one_req(req, has_chunked_req, *args, **kwargs)
                if self._added(req):
                    restorations.admitted(req)
                return result
            if has_chunked_req or self.new_chunked_req is not None:
                # SGLang prefills one prompt in part at a time; the next request may be a short one.
                return AddReqResult.CONTINUE
            given = self.rem_chunk_tokens
            self.rem_chunk_tokens = limit = min(given, whole_chunk(head, self.page_size, align))
            result = super().add_one_req(req, has_chunked_req, *args, **kwargs)
            self.rem_chunk_tokens = given - (limit - self.rem_chunk_tokens)
            if not self._added(req):
                return result
            restorations.admitted(req)
            if self._divided(req):
                self._reserve_rest(req)
            else:
                restorations.open.drop(req, RECOMPUTED)  # all of it, in one chunk
            return self.budget_state()

        def _reserve_rest(self, req: Req) -> None:
            # SGLang fills a step with a prompt that it divides, and admits none beside it. A head
            # leaves room in its step: what is admitted there must not take what its prompt needs
            # in the next ones, for which SGLang takes memory whether there is some or not.
            rest = len(req.full_untruncated_fill_ids) - int(req.extend_end)
            rest -= restorations.open.held_for(req)
            self.memory_budget.reserve(max(rest, 0), _answer(req))

        def _add_by_layers(self, req: Req, has_chunked_req: bool, *args: Any, **kwargs: Any) -> Any:
            # A step of its own: others have all of their layers computed.
            if has_chunked_req or self.can_run_list:
                return AddReqResult.CONTINUE
            result = super().add_one_req(req, has_chunked_req, *args, **kwargs)
            if not self._added(req):
                return result
            if not restorations.layered.began(req):
                return self.budget_state()
            unmix()
            return AddReqResult.OTHER

        @overrides("what is copied already takes no memory")
        def _select_prefill_admission(
            self, req: Req, *, has_chunked_req: bool = False, **kwargs: Any
        ) -> Any:
            # A restoration leaves room in its step, and no second prompt may be prefilled in part.
            found = super()._select_prefill_admission(
                req, has_chunked_req=has_chunked_req, **kwargs
            )
            second = has_chunked_req or self.new_chunked_req is not None
            if second and not isinstance(found, AddReqResult) and found.is_chunked:
                return AddReqResult.OTHER
            return found

        @overrides("a computed head is no hit")
        def _account_prefill_cache_admission(self, req: Req, prefix_len: int) -> None:
            # Of a head that was evicted or flushed meanwhile only the rest was computed before.
            req.already_computed = min(int(req.already_computed), prefix_len)
            before = self.log_device_hit_tokens
            admit = functools.partial(super()._account_prefill_cache_admission, req, prefix_len)
            if restorations.open.under_way(req):
                keep_hits(self.tree_cache, req.cache_request_handle, admit)
            else:
                admit()
            # A head that was computed just now is no hit.
            computed = min(self.log_device_hit_tokens - before, req.already_computed)
            self.log_device_hit_tokens -= computed
            self.log_hit_tokens -= computed  # SGLang adds the whole prefix elsewhere

        @overrides("the head ends where a chunk does")
        def add_chunked_req(self, req: Req) -> Any:
            head = restorations.chunk_of(req)
            if head is not None:
                limit = whole_chunk(head, self.page_size, align)
                given = self.chunked_req_limit
                self.chunked_req_limit = limit if given is None else min(given, limit)
            left = super().add_chunked_req(req)
            restorations.continues(req)
            if left is None:
                restorations.open.drop(req, RECOMPUTED)
            elif head is not None and self._added(req):
                self._reserve_rest(req)
            return left

    return RestoringAdder


def _answer(req: Req) -> int:
    """Tokens that SGLang reserves for a request's answer."""
    answer: int = min(req.sampling_params.max_new_tokens, CLIP_MAX_NEW_TOKENS)
    return answer
