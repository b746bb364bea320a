"""SGLang's own draft model of EAGLE, for a tiny Llama."""

from sglang.srt.models.llama_eagle import LlamaForCausalLMEagle

EntryClass = LlamaForCausalLMEagle
