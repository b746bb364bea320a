"""SGLang's own draft model of EAGLE, with a sliding window, for a tiny Qwen3 that has one.

So have the layers for drafts (MTP) that MiMo V2 and Step 3.5 bring. Their KV has places in the
target's pool of windows.
"""

from typing import Any

from sglang.srt.models.llama_eagle import LlamaForCausalLMEagle


class LlamaForCausalLMEagleWindow(LlamaForCausalLMEagle):
    """The architecture that `draft_models.make_tiny_draft` names."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        for layer in self.model.layers:
            layer.self_attn.attn.sliding_window_size = self.get_attention_sliding_window_size()

    def get_attention_sliding_window_size(self) -> int:
        """How many tokens before it a token attends to."""
        return int(self.config.sliding_window) - 1


EntryClass = LlamaForCausalLMEagleWindow
