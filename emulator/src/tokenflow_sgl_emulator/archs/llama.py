"""SGLang's own Llama, one of the two architectures of tiny models."""

from sglang.srt.models.llama import LlamaForCausalLM

EntryClass = LlamaForCausalLM
