"""SGLang's own Llama, one of the architectures of tiny models."""

from sglang.srt.models.llama import LlamaForCausalLM

EntryClass = LlamaForCausalLM
