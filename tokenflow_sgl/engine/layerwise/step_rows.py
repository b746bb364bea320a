"""The streams of one of SGLang's batches, and where it put their tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tokenflow_sgl.engine.layerwise.layer_executor import StepRow
from tokenflow_sgl.engine.sglang.batch import ForwardStep

PADDING = 0
"""The row in SGLang's table of requests that is no stream's: steps at start have it."""


def step_rows(forward_batch: ForwardStep, table: torch.Tensor) -> list[StepRow]:
    """All streams of a step that is not idle.

    On a GPU it waits until all steps before have been computed: SGLang's table is there, and it is
    written on the device.

    Args:
        forward_batch: SGLang's.
        table: SGLang's places of tokens, of shape (rows, context).
    """
    lengths = _on_host(forward_batch.seq_lens_cpu, forward_batch.seq_lens)
    new = [1] * len(lengths)
    if not forward_batch.forward_mode.is_decode():
        new = _on_host(forward_batch.extend_seq_lens_cpu, forward_batch.extend_seq_lens)
    rows = forward_batch.req_pool_indices
    # All in one transfer: row, then places.
    given = torch.cat((rows[:, None].to(table.dtype), table[rows, : max(lengths)]), dim=1)
    return [
        StepRow(int(own[0]), own[1 : 1 + length].astype(np.int64), tokens)
        for own, length, tokens in zip(given.cpu().numpy(), lengths, new, strict=True)
        if own[0] != PADDING
    ]


def _on_host(known: Any, on_device: torch.Tensor) -> list[int]:
    """Numbers that SGLang may have on the host, too: a list or a tensor; None: it has not."""
    found = on_device if known is None else known
    return found if isinstance(found, list) else [int(each) for each in found.tolist()]
