"""SGLang's own DeepSeek V2, whose attention keeps a latent row per token (MLA).

It attends to latent rows in prefills too, as in decode steps. With most backends SGLang expands the
rows of a prompt, which rounds otherwise: then a prompt's numbers would depend on how it is cut into
chunks.
"""

from sglang.srt.models.deepseek_common.attention_backend_handler import (
    AttentionBackendRegistry,
    AttnForwardMethod,
)
from sglang.srt.models.deepseek_v2 import DeepseekV2ForCausalLM, DeepseekV3ForCausalLM

from tokenflow_sgl_emulator import ATTENTION_BACKEND_NAME

AttentionBackendRegistry.register(ATTENTION_BACKEND_NAME, lambda *_: AttnForwardMethod.MLA)

EntryClass = [DeepseekV2ForCausalLM, DeepseekV3ForCausalLM]
