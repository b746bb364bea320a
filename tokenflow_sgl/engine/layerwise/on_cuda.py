"""What a server needs on an NVIDIA GPU, beside what it needs everywhere."""

from __future__ import annotations

import logging
from typing import Any

from sglang.srt.plugins.hook_registry import HookType
from sglang.srt.runtime_context import get_exec

from tokenflow_sgl.engine.layerwise.batched_copies import has_batched_copies
from tokenflow_sgl.engine.layerwise.layerwise_refusals import OURS, check_engine, check_graphs
from tokenflow_sgl.engine.sglang.attention import GraphSettings
from tokenflow_sgl.engine.sglang.hooking import hold

logger = logging.getLogger(__name__)

_FUSED_STORE = "sglang.srt.models.utils:enable_fused_set_kv_buffer"


def prepare_cuda() -> None:
    """In the scheduler's process, whose options SGLang has resolved.

    Raises:
        UnsupportedError: An option is missing, or a package.
    """
    settings: GraphSettings = get_exec().graph
    graphs = settings.cuda_graph_config
    check_graphs(graphs.decode.backend, graphs.prefill.backend)
    check_engine(there=has_batched_copies())
    hold(
        _FUSED_STORE,
        store_in_attention,
        HookType.REPLACE,
        "new tokens are stored by the attention alone, on GPUs",
        ("forward_batch",),
    )
    logger.warning("%s is experimental on GPUs: no server has run with it on one yet.", OURS)


def store_in_attention(_forward_batch: Any) -> bool:
    """In place of SGLang's word on whether rotary embeddings store KV: the attention does.

    They would store new tokens where SGLang's own pool has them.
    """
    return False
