"""Attention of the draft model: one reference backend for each draft of a chain."""

from typing import Any

import torch

from tokenflow_sgl_emulator.attention import ReferenceAttention


class DraftStepAttention(ReferenceAttention):
    """Attention of the n-th draft: behind each sequence there are n drafts with KV already.

    SGLang gives all drafts of a step the lengths of the sequences without them.
    """

    def __init__(self, model_runner: Any, step: int) -> None:
        super().__init__(model_runner)
        self._more = step + 1

    def _run_sdpa_forward_decode(
        self,
        query: torch.Tensor,
        output: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        req_to_token: torch.Tensor,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        """As the base class, over the drafts, too."""
        lengths = seq_lens + self._more
        return super()._run_sdpa_forward_decode(
            query,
            output,
            k_cache,
            v_cache,
            req_to_token,
            req_pool_indices,
            lengths,
            *args,
            **kwargs,
        )


class DraftSteps:
    """What SGLang's draft worker wants of a backend: one for each draft but the last."""

    def __init__(self, model_runner: Any, steps: int) -> None:
        self.attn_backends = [DraftStepAttention(model_runner, step) for step in range(steps - 1)]

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """A step of drafts begins."""
        for backend in self.attn_backends:
            backend.init_forward_metadata(forward_batch)


def decode_backend(factory: Any) -> DraftSteps | None:
    """Instead of SGLang's choice of a backend for the drafts; None: there is one only.

    Raises:
        ValueError: Drafts are a tree.
    """
    if factory.topk != 1:
        raise ValueError(f"speculative_eagle_topk is {factory.topk}; allowed on this platform is 1")
    steps = factory.speculative_num_steps
    return DraftSteps(factory.draft_model_runner, steps) if steps > 1 else None


def extend_backend(factory: Any) -> ReferenceAttention:
    """Instead of SGLang's choice of a backend for what the target has accepted."""
    return ReferenceAttention(factory.draft_model_runner)
