"""The layer for drafts of a tiny DeepSeek V4: a window, no compressed rows.

Named as SGLang's class, which configurations of V4 as a draft model are given.
"""

from collections.abc import Iterable
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from torch import nn

from tokenflow_sgl_emulator.archs.deepseek_v4 import (
    OF_DRAFTS,
    CompressedLayer,
    load_named,
    normed,
)


class DeepseekV4ForCausalLMNextN(nn.Module):
    """Goes on from the next token's embedding and the target's hidden state, added up.

    Its layer is like the target's first, which has a window only.
    """

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, enable_tp=False
        )
        self.h_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.decoder = CompressedLayer(config, 0)
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size)
        self.logits_processor = LogitsProcessor(config)

    @torch.no_grad()
    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any) -> Any:
        """Logits of the tokens behind the next ones."""
        hidden = self.embed_tokens(input_ids)
        hidden = hidden + self.h_proj(forward_batch.spec_info.hidden_states)
        hidden = normed(self.decoder(hidden, positions, forward_batch))
        return self.logits_processor(input_ids, hidden, self.lm_head, forward_batch)

    def get_attention_sliding_window_size(self) -> int:
        """Tokens that it attends to one by one."""
        return int(self.config.sliding_window)

    def set_embed_and_head(self, embed: torch.Tensor, head: torch.Tensor) -> None:
        """Share the target's embedding and output."""
        shared: list[tuple[Any, torch.Tensor]] = [(self.embed_tokens, embed), (self.lm_head, head)]
        for module, weight in shared:
            del module.weight
            module.weight = weight

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Its own; what it shares it is given later."""
        own = ((name, each) for name, each in weights if name.startswith(OF_DRAFTS))
        load_named(self, ((name.removeprefix(OF_DRAFTS), each) for name, each in own))


EntryClass = DeepseekV4ForCausalLMNextN
