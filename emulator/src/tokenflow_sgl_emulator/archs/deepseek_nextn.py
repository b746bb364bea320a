"""SGLang's own layer of DeepSeek V3 that drafts, without its calls of CUDA."""

from typing import Any

import torch
from sglang.srt.models import deepseek_nextn


class DeepseekV3ForCausalLMNextN(deepseek_nextn.DeepseekV3ForCausalLMNextN):
    """As the class that it stands for; configurations name it so."""

    def set_embed_and_head(self, embed: torch.Tensor, head: torch.Tensor) -> None:
        """Share the target's embedding and output."""
        shared: list[tuple[Any, torch.Tensor]] = [
            (self.model.embed_tokens, embed),
            (self.lm_head, head),
        ]
        for module, weight in shared:
            del module.weight
            module.weight = weight


EntryClass = DeepseekV3ForCausalLMNextN
