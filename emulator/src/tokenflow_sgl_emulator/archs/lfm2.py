"""SGLang's own LFM2: short convolutions on some layers, attention on the others.

A convolution keeps the inputs of the last tokens as the state of a request, in a pool of its own.
"""

from typing import Any

from sglang.srt.models import lfm2

from tokenflow_sgl_emulator.recurrent.state_hooks import install_convolutions


class Lfm2ForCausalLM(lfm2.Lfm2ForCausalLM):
    """As the class that it stands for; configurations name it so."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Not where this module is imported: SGLang imports all of them to find one.
        install_convolutions()
        super().__init__(*args, **kwargs)


EntryClass = Lfm2ForCausalLM
