"""SGLang's own Qwen3.5: gated delta networks on some layers, attention on the others."""

from typing import Any

from sglang.srt.models import qwen3_5_text

from tokenflow_sgl_emulator.recurrent.state_hooks import install_delta_rule


class Qwen3_5ForCausalLM(qwen3_5_text.Qwen3_5ForCausalLM):
    """As the class that it stands for; configurations name it so."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Not where this module is imported: SGLang imports all of them to find one.
        install_delta_rule()
        super().__init__(*args, **kwargs)


EntryClass = Qwen3_5ForCausalLM
