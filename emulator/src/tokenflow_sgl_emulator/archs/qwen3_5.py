"""SGLang's own Qwen3.5: gated delta networks on some layers, attention on the others."""

from tokenflow_sgl_emulator.recurrent.state_hooks import install_delta_rule

install_delta_rule()

from sglang.srt.models.qwen3_5_text import Qwen3_5ForCausalLM  # noqa: E402

EntryClass = Qwen3_5ForCausalLM
