"""What a paused stream's next step drafts from: what its last step left.

SGLang's decode server drafts a stream's first step there from what the prefill server sent beside
its KV, and keeps that with the request. After a retraction it drafts from the same again, although
it belongs to the stream's first token. A stream that is paused has its latest ones put there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenflow_sgl.engine.sglang.batch import ReqBatch
from tokenflow_sgl.engine.sglang.decode import DraftInput
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.worker import Relay


def keep_of_batch(batch: ReqBatch, victims: Sequence[Req]) -> None:
    """Without overlap: the batch that the victims are in has them, a row for each request."""
    drafts: DraftInput | None = batch.spec_info
    if drafts is None:
        return
    leaving = set(victims)
    for row, request in enumerate(batch.reqs):
        if request in leaving:
            _keep(request, row, drafts.topk_p, drafts.topk_index, drafts.hidden_states)


def keep_of_relay(relay: Relay, request: Req) -> None:
    """With overlap: SGLang hands them from step to step in a row for each place of a request.

    relay: Its `FutureMap`. The steps of the request have to be over, and its place still its own.
    """
    hidden = relay.hidden_states_buf if relay.need_hidden_states else None
    if relay.need_topk:
        _keep(request, request.kv.req_pool_idx, relay.topk_p_buf, relay.topk_index_buf, hidden)


def _keep(request: Req, row: int, chances: Any, tokens: Any, hidden: Any) -> None:
    """All or nothing: a step that has no drafts, such as NGRAM's, has none of these."""
    if chances is None or tokens is None:
        return
    request.output_topk_p = chances[row].cpu()
    request.output_topk_index = tokens[row].cpu()
    if hidden is not None:
        request.hidden_states_tensor = hidden[row].cpu()
