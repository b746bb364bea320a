"""Gives a resumed request its penalties back.

SGLang's frequency, presence, repetition and minimum-length penalties are rows of tensors
that grow with every token. A request that leaves a batch and comes back gets a blank row
(upstream's own retraction loses them too). The row is rebuilt from the output so far,
exactly as an undisturbed run would have it.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.sampling.penaltylib.frequency_penalty import BatchedFrequencyPenalizer
from sglang.srt.sampling.penaltylib.min_new_tokens import BatchedMinNewTokensPenalizer
from sglang.srt.sampling.penaltylib.presence_penalty import BatchedPresencePenalizer
from sglang.srt.sampling.penaltylib.repetition_penalty import BatchedRepetitionPenalizer
from sglang.srt.utils.common import is_pin_memory_available

from tokenflow_sgl.engine.sglang.batch import ReqBatch
from tokenflow_sgl.engine.sglang.request import Req


def rebuild_rows(batch: ReqBatch, resumed: list[Req], *, overlap: bool) -> None:
    """Restore the penalty rows of `resumed` requests in the prefill `batch` that resumes them.

    overlap: SGLang then counts one token late (the last result is still in flight when the
    next step is prepared), starting with the prompt's last token; the rebuilt row does too.
    """
    orchestrator = batch.sampling_info.penalizer_orchestrator
    if not orchestrator.is_required:
        return
    row_of = {request: row for row, request in enumerate(batch.reqs)}
    counted = [_counted(request, overlap) for request in resumed]
    # One copy for all rows, which does not wait for the step in flight.
    together = torch.tensor(
        [token for each in counted for token in each],
        dtype=torch.int64,
        pin_memory=is_pin_memory_available(batch.device),
    ).to(batch.device, non_blocking=True)
    rows = zip(resumed, together.split([len(each) for each in counted]), strict=True)
    for request, tokens in rows:
        for penalizer in orchestrator.penalizers.values():
            if penalizer.is_prepared():
                _rebuild(penalizer, row_of[request], tokens)


def _counted(request: Req, overlap: bool) -> list[int]:
    """The tokens that an undisturbed run would have counted by now."""
    output = list(request.output_ids)
    return [request.origin_input_ids[-1], *output[:-1]] if overlap else output


def _rebuild(penalizer: Any, row: int, tokens: torch.Tensor) -> None:
    if isinstance(penalizer, BatchedFrequencyPenalizer):
        amount = penalizer.frequency_penalties[row].expand(len(tokens))
        penalizer.cumulated_frequency_penalties[row].scatter_add_(0, tokens, amount)
    elif isinstance(penalizer, BatchedPresencePenalizer):
        penalizer.cumulated_presence_penalties[row, tokens] = penalizer.presence_penalties[row]
    elif isinstance(penalizer, BatchedRepetitionPenalizer):
        penalizer.cumulated_repetition_penalties[row, tokens] = penalizer.repetition_penalties[row]
    elif isinstance(penalizer, BatchedMinNewTokensPenalizer):
        penalizer.len_output_tokens[row] = len(tokens)
