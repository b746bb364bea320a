"""What is particular about the configurations of some tiny models, in the words of transformers."""

import json
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from transformers import DeepseekV2Config, Qwen3_5TextConfig


def window_layers(layers: int, window: int) -> dict[str, Any]:
    """Windows on every other layer, in the words of transformers and in those of SGLang."""
    kinds = ["sliding_attention", "full_attention"]
    return {
        "use_sliding_window": True,
        "sliding_window": window,
        "layer_types": list(islice(cycle(kinds), layers)),
        "is_hybrid_swa": True,
        "hybrid_layer_pattern": list(islice(cycle((1, 0)), layers)),
    }


def name_for_sglang(config: Path) -> None:
    """Name the class of `archs/qwen3_window.py`: SGLang's own Qwen3 takes no window."""
    content = json.loads(config.read_text())
    content["architectures"] = ["Qwen3WindowForCausalLM"]
    config.write_text(json.dumps(content, indent=2) + "\n")


def gated_deltas(sizes: dict[str, Any], width: int) -> Qwen3_5TextConfig:
    """Gated delta networks on every other layer, in the words of transformers and of SGLang."""
    layers, heads = sizes["num_hidden_layers"], sizes["num_attention_heads"]
    return Qwen3_5TextConfig(
        **sizes,
        head_dim=width,
        layer_types=list(islice(cycle(("linear_attention", "full_attention")), layers)),
        full_attention_interval=2,
        linear_num_key_heads=heads // 2,
        linear_num_value_heads=heads,
        linear_key_head_dim=width,
        linear_value_head_dim=width,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )


def latent_rows(sizes: dict[str, Any], width: int) -> DeepseekV2Config:
    """Latent rows of half the residual stream, a rotated part beside them, and no experts.

    Positions are stretched by a factor of 1: SGLang has no other kind for MLA on a CPU.
    """
    layers, heads = sizes["num_hidden_layers"], sizes["num_attention_heads"]
    return DeepseekV2Config(
        **{**sizes, "num_key_value_heads": heads},
        kv_lora_rank=sizes["hidden_size"] // 2,
        q_lora_rank=None,
        qk_nope_head_dim=width,
        qk_rope_head_dim=width // 2,
        v_head_dim=width,
        first_k_dense_replace=layers,
        moe_layer_freq=1,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 1.0,
            "original_max_position_embeddings": sizes["max_position_embeddings"],
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    )
