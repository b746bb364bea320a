"""Around SGLang's admission of a prompt: it waits where it would slow the streams down too much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sglang.srt.distributed.parallel_state import get_tp_group
from sglang.srt.managers.schedule_policy import CLIP_MAX_NEW_TOKENS, AddReqResult

from tokenflow_sgl.engine.layerwise.layerwise_pool import LayerwisePool


def admit(original: Callable[..., Any], adder: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
    """Around `PrefillAdder.add_one_req`: as if there were no pages, for a prompt that has to wait.

    SGLang then asks again when a stream has ended. Where none runs nothing waits.
    """
    pool = adder.token_to_kv_pool_allocator.get_kvcache()
    if isinstance(pool, LayerwisePool) and not _carried(pool, adder, req):
        return AddReqResult.NO_TOKEN
    return original(adder, req, *args, **kwargs)


def _carried(pool: LayerwisePool, adder: Any, req: Any) -> bool:
    running = [] if adder.running_batch is None else adder.running_batch.reqs
    others = [*running, *adder.can_run_list]
    if not others:
        return True
    pages = np.array([_pages(adder, each, pool.page_size) for each in (*others, req)])
    if pool.executor.all_fit(pages):
        return True
    carried = pool.executor.carries(pages[:-1], int(pages[-1]))
    return _on_all_ranks(carried)


def _pages(adder: Any, req: Any, page: int) -> int:
    """Of a stream, with the share of its answer's limit that SGLang expects it to use."""
    left = req.sampling_params.max_new_tokens - len(req.output_ids)
    answer = min(max(left, 0), CLIP_MAX_NEW_TOKENS) * adder.new_token_ratio
    tokens = len(req.origin_input_ids) + len(req.output_ids) + int(answer)
    return int(-(-tokens // page))


def _on_all_ranks(carried: bool) -> bool:
    """Each rank has measured its own speeds, and all have to admit the same prompts."""
    group = get_tp_group()
    if group.world_size == 1:
        return carried
    verdict = torch.tensor(int(carried))
    torch.distributed.all_reduce(verdict, torch.distributed.ReduceOp.MIN, group.cpu_group)
    return bool(verdict)
