"""When running streams decode in the same step as a prefill.

A resumed stream needs one token prefilled before it decodes with the others. As a step of its own
that costs all streams the time of reading the weights once, and under stress streams are resumed
several times a second. SGLang can mix decoding rows into a prefill step; this decides when.
"""

from __future__ import annotations

from collections.abc import Iterable

from sglang.srt.model_executor.cuda_graph_config import Backend
from sglang.srt.runtime_context import get_exec, get_parallel

from tokenflow_sgl.contract import Prefill
from tokenflow_sgl.engine.config import TokenFlowConfig
from tokenflow_sgl.engine.refusal import UnsupportedError
from tokenflow_sgl.engine.sglang.attention import GraphSettings
from tokenflow_sgl.engine.sglang.batch import ReqBatch
from tokenflow_sgl.engine.sglang.release import MIXES_STATES, megamoe
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.worker import LiveScheduler

_GRAPHS = (Backend.DISABLED, Backend.BREAKABLE, Backend.FULL)
"""Prefill graphs that SGLang's --enable-mixed-chunk accepts."""


class Mixing:
    """Mixed steps of one scheduler.

    Args:
        scheduler: SGLang's, with its chunked prefill set up.
        config: Ours.

    Raises:
        UnsupportedError: SGLang was told to mix, and this release does it wrongly for this model.
    """

    def __init__(self, scheduler: LiveScheduler, config: TokenFlowConfig) -> None:
        self._scheduler = scheduler
        self._asked_for = bool(scheduler.is_mixed_chunk)
        right = MIXES_STATES or not scheduler.tree_cache.supports_mamba()
        if self._asked_for and not right:
            raise UnsupportedError(
                "--enable-mixed-chunk with a model that keeps recurrent states needs SGLang 0.5.23 "
                "or later: before that, mixed steps leave wrong states behind. Start without the "
                "option, or install that version."
            )
        backend = type(scheduler.tp_worker.model_runner.attn_backend).__name__
        self._possible = (
            config.mixed_chunk == "auto"
            # A row of a prefill step cannot verify drafts: it would get one token in that step.
            and scheduler.spec_algorithm.is_none()
            and scheduler.chunked_prefill_size is not None
            and right
            and _graphs().cuda_graph_config.prefill.backend in _GRAPHS
            # Its metadata is built for mixed steps only where the server was started for them.
            and backend != "DeepseekSparseAttnBackend"
            # SGLang refuses mixed steps at start with these, which do not expect decoding rows.
            and not get_parallel().enable_cp_tp_group_sharing
            and not megamoe(get_parallel())
        )

    def mixes(self, policy_decides: bool, decoding: int) -> bool:
        """Whether the next prefill may take decoding rows along; SGLang's option always holds.

        decoding: the rows. SGLang takes them off the chunk. Where chunks are cut into pieces
        (truncation_align_size), what is left must hold one, or a long prompt would not start.
        """
        if self._asked_for or not (policy_decides and self._possible):
            return self._asked_for
        piece = self._scheduler.truncation_align_size or 1
        return bool(self._scheduler.chunked_prefill_size - decoding >= piece)

    def holds(self, gate: Prefill, batch: ReqBatch, offered: Iterable[Req]) -> bool:
        """Whether a decode step of the batch comes before the prefill of what is offered."""
        if not gate.hold or batch.is_empty():
            return False
        return gate.hold_mixed or not self.goes_on(batch, offered)

    def goes_on(self, batch: ReqBatch, offered: Iterable[Req]) -> bool:
        """Whether the streams of a batch decode while what is offered is prefilled.

        SGLang mixes neither rows that return log probabilities, nor those of beams, nor prompts
        that are embeddings.
        """
        chunked = self._scheduler.chunked_req
        joining = [*offered, *([chunked] if chunked is not None else [])]
        return bool(
            self._scheduler.is_mixed_chunk
            and not batch.return_logprob
            and all(req.beam_group is None for req in batch.reqs)
            and not any(req.return_logprob or req.input_embeds is not None for req in joining)
        )


def _graphs() -> GraphSettings:
    settings: GraphSettings = get_exec().graph
    return settings
