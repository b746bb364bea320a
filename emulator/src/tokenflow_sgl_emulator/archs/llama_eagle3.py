"""SGLang's own draft model of EAGLE3, for a tiny Llama."""

from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3

EntryClass = LlamaForCausalLMEagle3
