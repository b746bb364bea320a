"""A tiny DeepSeek V3 that brings a layer which predicts a token more (MTP), with latent rows (MLA).

Its other layers are those of a tiny DeepSeek V2, without experts; this one has some, as SGLang
always takes it to.
"""

from pathlib import Path
from typing import Any

import torch

from tokenflow_sgl_emulator.draft_models import fitted, read_model, write_anew

_DAMPED = 0.2
"""Of what the layer adds to what is fitted: it changes what is said, and does not drown it."""
_EXPERTS = 4


@torch.no_grad()
def make_tiny_latent_mtp(path: str | Path, target: str | Path, *, seed: int = 0) -> Path:
    """Write a tiny DeepSeek V2 anew, with such a layer: a copy of its last, of experts alike.

    Args:
        path: Folder to write.
        target: Folder of the model; the text is the same.
        seed: Equal seeds give equal layers.

    Returns:
        ``path`` as a ``Path``, ready for ``--model-path`` and ``--speculative-draft-model-path``.

    Raises:
        ValueError: The target is no DeepSeek V2.
    """
    config, model = read_model(target, ("deepseek_v2",))
    tensors = dict(model.state_dict())
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    source, own = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    for name in [name for name in tensors if name.startswith(source)]:
        part, weight = name.removeprefix(source), tensors[name].clone()
        if part in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
            weight *= _DAMPED
        expert, _, projection = part.partition("mlp.")
        if projection:
            for number in range(_EXPERTS):
                tensors[f"{own}mlp.experts.{number}.{projection}"] = weight.clone()
            # SGLang wants one beside those that are chosen from: it says nothing.
            tensors[f"{own}mlp.shared_experts.{projection}"] = torch.zeros_like(weight)
        else:
            tensors[own + expert] = weight
    generator = torch.Generator().manual_seed(seed)
    tensors[f"{own}mlp.gate.weight"] = torch.randn(_EXPERTS, hidden, generator=generator)
    tensors[f"{own}mlp.gate.e_score_correction_bias"] = torch.zeros(_EXPERTS)
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"{own}{norm}.weight"] = torch.ones(hidden)
    tensors[f"{own}eh_proj.weight"] = fitted(model, seed)
    more: dict[str, Any] = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_nextn_predict_layers": 1,
        "n_routed_experts": _EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": config["intermediate_size"],
        "first_k_dense_replace": layers,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
    }
    return write_anew(path, target, {**config, **more}, tensors)
