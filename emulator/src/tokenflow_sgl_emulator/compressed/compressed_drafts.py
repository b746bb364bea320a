"""DeepSeek V4's own layer for drafts (NEXTN): its attention, step by step, and what a kernel did.

It has a window only, in places of the target's pool of windows. Its drafts are chains: SGLang's
pages have 256 tokens here.
"""

from typing import Any

import torch

from tokenflow_sgl_emulator.compressed.compressed_attention import CompressedAttention, Span


class CompressedDraftStep(CompressedAttention):
    """Attention of the n-th step: behind each sequence n drafts have KV already."""

    def __init__(self, model_runner: Any, step: int) -> None:
        super().__init__(model_runner)
        self._more = step + 1

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """A step begins; SGLang gives all steps the lengths of the sequences without drafts."""
        super().init_forward_metadata(forward_batch)
        self._spans = [
            Span(span.row, span.before + self._more, span.length + self._more, span.at)
            for span in self._spans
        ]


def clear_unaccepted(
    state: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    accept_lens: torch.Tensor,
    *,
    ring_size: int,
    num_draft_tokens: int,
) -> None:
    """Forget the values and scores of drafts that were not accepted; twin of a kernel.

    Args:
        state: [places, 2 * width], a ring of `ring_size` places for each row.
        req_pool_indices: Rows.
        seq_lens: Tokens of each before its drafts.
        accept_lens: Drafts that were accepted of each, and the token that is verified with them.
        ring_size: Places of a ring.
        num_draft_tokens: Tokens that were verified of each.
    """
    draft = torch.arange(num_draft_tokens)
    place = req_pool_indices[:, None] * ring_size + (seq_lens[:, None] + draft) % ring_size
    gone = place[draft >= accept_lens[:, None]].long()
    half = state.shape[-1] // 2
    state[gone, :half] = 0.0
    state[gone, half:] = float("-inf")
