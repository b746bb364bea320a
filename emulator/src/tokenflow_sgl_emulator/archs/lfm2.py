"""SGLang's own LFM2: short convolutions on some layers, attention on the others.

A convolution keeps the inputs of the last tokens as the state of a request, in a pool of its own.
"""

from tokenflow_sgl_emulator.recurrent.state_hooks import install_convolutions

install_convolutions()

from sglang.srt.models.lfm2 import Lfm2ForCausalLM  # noqa: E402

EntryClass = Lfm2ForCausalLM
