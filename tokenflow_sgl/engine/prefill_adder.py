"""Admission by what a stream needs next, not by the most it may ever need.

SGLang reserves a share of every running request's `max_new_tokens` before it admits the
next one, because it cannot give memory back cheaply. Preempt through the prefix tree
can, so under stress a few decode steps of reserve are enough.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from typing import Any

from sglang.srt.managers.schedule_policy import CLIP_MAX_NEW_TOKENS, AddReqResult, PrefillAdder

from tokenflow_sgl.contract.reserve import Growth
from tokenflow_sgl.engine.sglang.batch import ReqBatch
from tokenflow_sgl.engine.sglang.overriding import checked, overrides
from tokenflow_sgl.engine.sglang.pools import Allocator
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.tree import Tree


@dataclass(slots=True)
class AdmissionLimits:
    """What the current decision says to the adder; the scheduler rewrites it every pass.

    active: the policy decides; otherwise the adder is SGLang's own.
    prefill_limit: tokens per prefill step, None: the engine's own limit.
    begun: tokens at most of the prompt of which earlier steps computed a part, None: all that fit.
    align: tokens that the engine cuts chunks of prompts into (truncation_align_size); None: pages.
    recompute: requests whose host KV is recomputed, not loaded.
    growth: how the KV of running streams grows.
    """

    active: bool = False
    prefill_limit: int | None = None
    begun: int | None = None
    align: int | None = None
    recompute: frozenset[Any] = field(default_factory=frozenset)
    growth: Growth = field(default_factory=Growth)


def whole_chunk(limit: int, page: int, align: int | None) -> int:
    """The tokens of a prefill step that SGLang does not round down to none.

    A chunk is a whole number of pages. With deterministic inference it is a multiple of a larger
    number, 4,096 with flashinfer: as long as that, or a long prompt would not start at all.
    """
    if align is None:
        return max(limit // page, 1) * page
    unit = math.lcm(page, align)
    return math.ceil(limit / unit) * unit


def compute_anew(req: Req) -> None:
    """Let the engine compute what the host has of a request, instead of loading it.

    As after a load that the engine could not place: only the prefix on the device counts.
    """
    req.host_hit_length = req.swa_host_hit_length = req.mamba_host_hit_length = 0


def adder_class(limits: AdmissionLimits) -> type[PrefillAdder]:
    """A PrefillAdder that follows `limits`; one class per scheduler."""

    @checked
    class NeedBasedAdder(PrefillAdder):  # type: ignore[misc]
        chunked_req_limit: int | None

        @overrides("short prefill chunks under stress")
        def __init__(
            self,
            page_size: int,
            tree_cache: Tree,
            token_to_kv_pool_allocator: Allocator,
            running_batch: ReqBatch,
            new_token_ratio: float,
            rem_input_tokens: int,
            rem_chunk_tokens: int | None,
            mixed_with_decode_tokens: int = 0,
            *args: Any,
            **kwargs: Any,
        ) -> None:
            if limits.active and limits.prefill_limit is not None and rem_chunk_tokens is not None:
                # SGLang takes the decoding rows off it.
                short = whole_chunk(limits.prefill_limit, page_size, limits.align)
                rem_chunk_tokens = min(rem_chunk_tokens, short + mixed_with_decode_tokens)
            super().__init__(
                page_size,
                tree_cache,
                token_to_kv_pool_allocator,
                running_batch,
                new_token_ratio,
                rem_input_tokens,
                rem_chunk_tokens,
                mixed_with_decode_tokens,
                *args,
                **kwargs,
            )

        @overrides("reserves a few decode steps")
        def _get_running_request_total_token_offset(self, req: Req) -> float:
            reserve: float = super()._get_running_request_total_token_offset(req)
            return min(reserve, limits.growth.headroom) if limits.active else reserve

        @overrides("others begin beside a prompt that is computed in part")
        def add_chunked_req(self, req: Req) -> Any:
            if not limits.active or limits.begun is None:
                return super().add_chunked_req(req)
            limit = whole_chunk(limits.begun, self.page_size, limits.align)
            given = self.chunked_req_limit
            self.chunked_req_limit = limit if given is None else min(given, limit)
            left = super().add_chunked_req(req)
            if left is not None:
                # SGLang fills a step with such a prompt. What is admitted beside it must not take
                # what it needs in the next steps.
                rest = len(req.full_untruncated_fill_ids) - int(req.extend_end)
                self.memory_budget.reserve(max(rest, 0), 0)
            return left

        @overrides("admits by need")
        def _select_prefill_admission(self, req: Req, *, total_tokens: int, **kwargs: Any) -> Any:
            found = self._selected(req, total_tokens=total_tokens, **kwargs)
            begun = limits.active and limits.begun is not None and kwargs.get("has_chunked_req")
            if begun and not isinstance(found, AddReqResult) and found.is_chunked:
                return AddReqResult.OTHER  # SGLang computes one prompt in part at a time
            return found

        def _selected(self, req: Req, *, total_tokens: int, **kwargs: Any) -> Any:
            if limits.active:
                left = req.sampling_params.max_new_tokens - len(req.output_ids)
                reserved = min(max(left, 0), CLIP_MAX_NEW_TOKENS)
                total_tokens -= max(reserved - limits.growth.headroom, 0)
            # What a load joins to the prefix on the device is locked with it: where windows have
            # a pool of their own, SGLang counts that as free, and dies if the step needs it.
            loads = self.is_hybrid_swa and req.needs_host_load_back()
            with self._lock_node(req.best_match_node) if loads else contextlib.nullcontext():
                return super()._select_prefill_admission(req, total_tokens=total_tokens, **kwargs)

        @overrides("charges by need")
        def _update_prefill_budget(
            self,
            prefix_len: int,
            extend_input_len: int,
            max_new_tokens: int,
            *args: Any,
            **kwargs: Any,
        ) -> None:
            if limits.active:
                max_new_tokens = min(max_new_tokens, limits.growth.headroom)
            super()._update_prefill_budget(
                prefix_len, extend_input_len, max_new_tokens, *args, **kwargs
            )

        @overrides("recomputes, or lets it wait")
        def add_one_req(self, req: Req, *args: Any, **kwargs: Any) -> Any:
            if req in limits.recompute:
                compute_anew(req)
            result = super().add_one_req(req, *args, **kwargs)
            if result is AddReqResult.NO_TOKEN and self._waits_for_nothing(req):
                compute_anew(req)
                result = super().add_one_req(req, *args, **kwargs)
            return result

        def _waits_for_nothing(self, req: Req) -> bool:
            """Whether a load does not fit into the windows' pool, and no request will leave it."""
            batch = self.running_batch
            others = self.can_run_list or (batch is not None and batch.reqs)
            return self.is_hybrid_swa and req.needs_host_load_back() and not others

    return NeedBasedAdder
