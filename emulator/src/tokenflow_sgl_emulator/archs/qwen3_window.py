"""SGLang's own Qwen3, with a sliding window on some of its layers.

Their KV goes to a pool of its own, as that of gpt-oss and others does; the model's configuration
asks SGLang for it (``is_hybrid_swa``).
"""

from typing import Any

from sglang.srt.models.qwen3 import Qwen3ForCausalLM


class Qwen3WindowForCausalLM(Qwen3ForCausalLM):
    """The architecture that `models.make_tiny_model` names."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        for windowed, layer in zip(config.hybrid_layer_pattern, self.model.layers, strict=True):
            if windowed:
                layer.self_attn.attn.sliding_window_size = self._before()

    def get_attention_sliding_window_size(self) -> int:
        """How many tokens before it a token attends to."""
        return self._before()

    def _before(self) -> int:
        return int(self.config.sliding_window) - 1


EntryClass = Qwen3WindowForCausalLM
