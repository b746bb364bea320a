"""SGLang's own Qwen3, one of the architectures of tiny models."""

from sglang.srt.models.qwen3 import Qwen3ForCausalLM

EntryClass = Qwen3ForCausalLM
