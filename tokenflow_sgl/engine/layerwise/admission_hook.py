"""Around SGLang's admission of a prompt: it waits where it would slow the streams down too much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sglang.srt.distributed.parallel_state import get_tp_group
from sglang.srt.managers.schedule_policy import AddReqResult

from tokenflow_sgl.engine.layerwise.layerwise_pool import LayerwisePool
from tokenflow_sgl.engine.layerwise.prompt_admission import has_waited
from tokenflow_sgl.engine.layerwise.shared_pages import shared_pages
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.worker import Group, PrefillAdmission

_WAITED_FOR = "tokenflow_waited_for"
"""Attribute of a request that waits: ids of the streams that ran when it was first told to."""


def admit(
    original: Callable[..., Any], adder: PrefillAdmission, req: Req, *args: Any, **kwargs: Any
) -> Any:
    """Around `PrefillAdder.add_one_req`: as if there were no pages, for a prompt that has to wait.

    SGLang then asks again when a stream has ended. Nothing waits for a single stream, and neither
    does what streams were retracted for, or what decodes in no step.
    """
    pool = adder.token_to_kv_pool_allocator.get_kvcache()
    asked = isinstance(pool, LayerwisePool) and _decodes(req) and not adder.preempt_list
    if asked and not _carried(pool, adder, req):
        return AddReqResult.NO_TOKEN
    return original(adder, req, *args, **kwargs)


def _decodes(req: Req) -> bool:
    """Whether it will have decode steps: the prefill gives the first token."""
    return req.to_finish is None and req.sampling_params.max_new_tokens - len(req.output_ids) > 1


def _carried(pool: LayerwisePool, adder: PrefillAdmission, req: Req) -> bool:
    running = [] if adder.running_batch is None else adder.running_batch.reqs
    others = [each for each in (*running, *adder.can_run_list) if _decodes(each)]
    if len(others) < 2:
        return True
    pages = np.array([_pages(adder, each, pool) for each in (*others, req)])
    if pool.executor.all_fit(pages):
        return True
    carried = _on_all_ranks(pool.executor.carries(pages[:-1], int(pages[-1])))
    return carried or _has_waited(req, {each.rid for each in others})


def _has_waited(req: Req, others: set[str]) -> bool:
    """Whether enough of the streams have ended for which it waits."""
    first: set[str] | None = getattr(req, _WAITED_FOR, None)
    if first is None:
        setattr(req, _WAITED_FOR, others)
        return False
    return has_waited(first, others)


def _pages(adder: PrefillAdmission, req: Req, pool: LayerwisePool) -> int:
    """Pages of a stream, with the share of its answer's limit that SGLang expects it to use.

    What running streams share is counted for one of them, what only the prefix tree has for each.
    """
    answer = max(adder._get_running_request_total_token_offset(req), 0)
    tokens = len(req.origin_input_ids) + len(req.output_ids) + int(answer)
    return int(-(-tokens // pool.page_size)) - shared_pages(pool, adder.tree_cache, req)


def _on_all_ranks(carried: bool) -> bool:
    """Each rank has measured its own speeds, and all have to admit the same prompts."""
    group: Group = get_tp_group()
    if group.world_size == 1:
        return carried
    verdict = torch.tensor(int(carried))
    torch.distributed.all_reduce(verdict, torch.distributed.ReduceOp.MIN, group.cpu_group)
    return bool(verdict)
