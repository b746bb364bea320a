"""A tiny Qwen3.5 that brings a layer which predicts a token more (MTP).

Its other layers keep recurrent states; this one attends.
"""

from pathlib import Path

import torch

from tokenflow_sgl_emulator.draft_models import fitted, read_model, write_anew

_DAMPED = 0.03
"""Of what each layer adds: the next token says most of what follows, so drafts can be right."""


@torch.no_grad()
def make_tiny_deltas_mtp(path: str | Path, target: str | Path, *, seed: int = 0) -> Path:
    """Write a tiny Qwen3.5 anew, with such a layer: a copy of one of its own that attend.

    Args:
        path: Folder to write.
        target: Folder of the model; its text is another one, for its layers are damped.
        seed: Equal seeds give equal layers.

    Returns:
        ``path`` as a ``Path``, ready for ``--model-path`` and ``--speculative-draft-model-path``.

    Raises:
        ValueError: The target is no Qwen3.5.
    """
    config, model = read_model(target, ("qwen3_5_text",))
    for name, weight in model.named_parameters():
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
            weight *= _DAMPED
    tensors = dict(model.state_dict())
    attends = config["layer_types"].index("full_attention")
    source = f"model.layers.{attends}."
    for name in [name for name in tensors if name.startswith(source)]:
        tensors["mtp.layers.0." + name.removeprefix(source)] = tensors[name].clone()
    for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        # Its norms are kept as what they differ from 1 by.
        tensors[f"mtp.{norm}.weight"] = torch.zeros(config["hidden_size"])
    tensors["mtp.fc.weight"] = fitted(model, seed)
    return write_anew(path, target, config, tensors)
