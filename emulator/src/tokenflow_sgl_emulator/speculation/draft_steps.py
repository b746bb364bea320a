"""Attention of the draft model: one reference backend for each step of drafts."""

from typing import Any

import torch
from sglang.srt.configs.model_config import is_deepseek_v4

from tokenflow_sgl_emulator.attention import ReferenceAttention
from tokenflow_sgl_emulator.compressed.compressed_attention import CompressedAttention
from tokenflow_sgl_emulator.compressed.compressed_drafts import CompressedDraftStep


class DraftStepAttention(ReferenceAttention):
    """Attention of the n-th step: behind each sequence each branch has n drafts with KV already.

    SGLang gives all drafts of a step the lengths of the sequences without them. A branch has its
    own slots behind the sequence, one per step, the next branch's behind those. They stay where
    they are when the best candidates all come from one branch: then another branch goes on with
    KV that is not its own, in SGLang, too. It changes what is drafted, and no text.
    """

    def __init__(self, model_runner: Any, step: int, steps: int, branches: int) -> None:
        super().__init__(model_runner)
        self._more, self._steps, self._branches = step + 1, steps, branches

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
    ) -> torch.Tensor:
        """As the base class; a layer with a window writes where this step's drafts have a place.

        SGLang describes all steps at once, and then gives each the slots of its own.
        """
        if self.use_sliding_window_kv_pool:
            self.swa_out_cache_loc = self.token_to_kv_pool.translate_loc_from_full_to_swa(
                forward_batch.out_cache_loc
            )
        return super().forward_decode(q, k, v, layer, forward_batch, save_kv_cache)

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
        """As the base class, over the drafts of each branch, too."""
        table, lengths = req_to_token, seq_lens + self._more
        rows = req_pool_indices
        if self._branches > 1:
            table = self._branch_slots(req_to_token[req_pool_indices], seq_lens)
            lengths = lengths.repeat_interleave(self._branches)
            rows = torch.arange(len(lengths))
        return super()._run_sdpa_forward_decode(
            query, output, k_cache, v_cache, table, rows, lengths, *args, **kwargs
        )

    def _branch_slots(self, rows: torch.Tensor, seq_lens: torch.Tensor) -> torch.Tensor:
        """A row of slots for each branch: those of the sequence, then its own."""
        columns = int(seq_lens.max()) + self._more
        place = torch.arange(columns).expand(len(rows), self._branches, columns)
        skipped = torch.arange(self._branches).view(-1, 1) * self._steps
        place = place + skipped * (place >= seq_lens.view(-1, 1, 1))
        # Of shorter sequences the last columns are not read.
        place = place.flatten(1).clamp(max=rows.shape[1] - 1)
        return rows.gather(1, place).view(-1, columns)


class DraftSteps:
    """What SGLang's draft worker wants of a backend: one for each step of drafts but the last."""

    def __init__(self, attn_backends: list[Any]) -> None:
        self.attn_backends = attn_backends

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """A step of drafts begins."""
        for backend in self.attn_backends:
            backend.init_forward_metadata(forward_batch)


def decode_backend(factory: Any) -> DraftSteps | None:
    """Instead of SGLang's choice of a backend for the drafts; None: there is one step only."""
    steps = factory.speculative_num_steps
    if steps <= 1:
        return None
    runner = factory.draft_model_runner
    if _is_compressed(runner):
        return DraftSteps([CompressedDraftStep(runner, step) for step in range(steps - 1)])
    return DraftSteps(
        [DraftStepAttention(runner, step, steps, factory.topk) for step in range(steps - 1)]
    )


def extend_backend(factory: Any) -> Any:
    """Instead of SGLang's choice of a backend for what the target has accepted."""
    runner = factory.draft_model_runner
    return CompressedAttention(runner) if _is_compressed(runner) else ReferenceAttention(runner)


def _is_compressed(model_runner: Any) -> bool:
    return bool(is_deepseek_v4(model_runner.model_config.hf_config))
