"""Tiny draft models for EAGLE and EAGLE3, and a tiny model that brings its own (MTP).

A draft model goes on from the target's hidden states. Its one layer is random, like the target.
What it says is wrong nearly always, unless it is fitted: the projection in front of the layer is
fitted to what the target makes of random texts, by least squares. So some drafts are accepted and
others are not, and both depend on the draft model's own KV.
"""

import json
import shutil
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

Kind = Literal["eagle", "eagle3", "eagle-window"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_ARCHITECTURE = {
    "eagle": "LlamaForCausalLMEagle",
    "eagle3": "LlamaForCausalLMEagle3",
    "eagle-window": "LlamaForCausalLMEagleWindow",
}
_OF_LAYERS = ("layer_types", "is_hybrid_swa", "hybrid_layer_pattern", "use_sliding_window")
"""What a target's configuration says of its layers, which is not true of the draft model's."""
_TEXTS, _LENGTH = 24, 160
"""Random texts that the projection is fitted to, and their tokens."""
_LAYERS = (0, 1, 2)
"""Of the target, behind which EAGLE3 reads."""
_STD = 0.05
"""Standard deviation of the layer's weights: it changes what is said, and does not drown it."""


@torch.no_grad()
def make_tiny_draft(
    path: str | Path, target: str | Path, kind: Kind = "eagle", *, seed: int = 0
) -> Path:
    """Write a draft model for a tiny Llama or Qwen3 that `make_tiny_model` has written.

    Args:
        path: Folder to write.
        target: Folder of the model that it drafts for.
        kind: ``"eagle"``, ``"eagle3"``, or ``"eagle-window"`` for one whose layer has the target's
            sliding window, as layers that models bring themselves (MTP) have.
        seed: Equal seeds give equal models.

    Returns:
        ``path`` as a ``Path``, ready for ``--speculative-draft-model-path``.

    Raises:
        ValueError: Unknown ``kind``, or the target is another model, or has no window.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {KINDS}, got {kind!r}")
    config, model = read_model(target, ("llama", "qwen3"))
    if kind == "eagle-window" and not config.get("sliding_window"):
        raise ValueError(f"target must have a sliding window for kind {kind!r}, got {target}")
    generator = torch.Generator().manual_seed(seed)
    name, inputs = ("midlayer.", 2) if kind == "eagle3" else ("layers.0.", 1)
    tensors = _layer(config, name, inputs, generator)
    ones = torch.ones(config["hidden_size"])
    texts, said = _say(model, generator)
    last, embedded = said[-1], model.model.embed_tokens(texts)
    own: dict[str, Any] = {
        "architectures": [_ARCHITECTURE[kind]],
        "model_type": "llama",
        "num_hidden_layers": 1,
    }
    if kind != "eagle3":
        # From the next token and the present last hidden state to the next one.
        known = torch.cat([embedded[:, 1:], last[:, :-1]], dim=-1)
        tensors["fc.weight"] = _least_squares(known, last[:, 1:])
        tensors["fc.bias"] = torch.zeros(config["hidden_size"])
        del tensors["layers.0.input_layernorm.weight"]
    else:
        # From hidden states of three layers; the layer adds to what is fitted.
        known = torch.cat([said[at + 1] for at in _LAYERS], dim=-1)
        tensors["fc.weight"] = _least_squares(known[:, :-1], last[:, 1:])
        tensors |= {"midlayer.hidden_norm.weight": ones, "norm.weight": ones.clone()}
        tensors["lm_head.weight"] = model.lm_head.weight.clone()
        own["draft_vocab_size"] = config["vocab_size"]
        own["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [*_LAYERS]}
    for key in _OF_LAYERS:
        config.pop(key, None)
    if kind == "eagle-window":
        own |= {"is_hybrid_swa": True, "hybrid_layer_pattern": [1], "num_nextn_predict_layers": 1}
    return _write(path, {**config, **own}, tensors)


@torch.no_grad()
def make_tiny_mtp(path: str | Path, target: str | Path, *, seed: int = 0) -> Path:
    """Write a tiny Llama anew as a MiMo, which has a layer that predicts a token more (MTP).

    Args:
        path: Folder to write.
        target: Folder of the model; the text is the same.
        seed: Equal seeds give equal layers.

    Returns:
        ``path`` as a ``Path``, ready for ``--model-path`` and ``--speculative-draft-model-path``.

    Raises:
        ValueError: The target is no Llama.
    """
    config, model = read_model(target, ("llama",))
    generator = torch.Generator().manual_seed(seed)
    name, ones = "model.mtp_layers.0.", torch.ones(config["hidden_size"])
    tensors = {**model.state_dict(), **_layer(config, name, 1, generator)}
    for each in [
        each
        for each in tensors
        if each.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))
    ]:
        tensors[each.removesuffix("weight") + "bias"] = torch.zeros(len(tensors[each]))
    texts, said = _say(model, generator)
    last, embedded = said[-1], model.model.embed_tokens(texts)
    # Each half is normed before the projection.
    known = torch.cat([_normed(last[:, :-1]), _normed(embedded[:, 1:])], dim=-1)
    tensors[f"{name}input_proj.weight"] = _least_squares(known, last[:, 1:])
    for norm in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        tensors[f"{name}{norm}.weight"] = ones.clone()
    own: dict[str, Any] = {"architectures": ["MiMoForCausalLM"], "model_type": "qwen2"}
    return write_anew(path, target, {**config, **own, "num_nextn_predict_layers": 1}, tensors)


def read_model(
    target: str | Path, kinds: tuple[str, ...]
) -> tuple[dict[str, Any], PreTrainedModel]:
    """Configuration and model of a folder.

    Raises:
        ValueError: Its model type is none of these.
    """
    config = json.loads((Path(target) / "config.json").read_text())
    if config["model_type"] not in kinds:
        raise ValueError(f"target must be a {' or a '.join(kinds)}, got {config['model_type']!r}")
    model = AutoModelForCausalLM.from_pretrained(Path(target), dtype=torch.float32)
    return config, model.eval()


def write_anew(
    path: str | Path, target: str | Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]
) -> Path:
    """Write a model with the tokenizer of the one that it is made of; returns the folder."""
    out = _write(path, config, tensors)
    for file in Path(target).glob("*token*"):
        shutil.copy(file, out)
    return out


def _write(path: str | Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    out = Path(path)
    out.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: each.contiguous() for name, each in tensors.items()}, out / "model.safetensors"
    )
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return out


def _layer(
    config: dict[str, Any], name: str, inputs: int, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """A decoder layer: random, and without effect on the channel that bans tokens.

    inputs: hidden states that it reads side by side.
    """
    hidden, wide, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes = {
        "self_attn.q_proj": (query, inputs * hidden),
        "self_attn.k_proj": (keys, inputs * hidden),
        "self_attn.v_proj": (keys, inputs * hidden),
        "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
    }
    found = {
        f"{name}{part}.weight": torch.randn(shape, generator=generator) * _STD
        for part, shape in shapes.items()
    }
    for part in ("self_attn.o_proj", "mlp.down_proj"):
        found[f"{name}{part}.weight"][0] = 0.0
    for norm in ("input_layernorm", "post_attention_layernorm"):
        found[f"{name}{norm}.weight"] = torch.ones(hidden)
    return found


def fitted(model: PreTrainedModel, seed: int) -> torch.Tensor:
    """From the next token's embedding and the present last hidden state, normed, to the next one.

    Returns:
        [width, 2 * width], float32.
    """
    texts, said = _say(model, torch.Generator().manual_seed(seed))
    last, embedded = said[-1], model.model.embed_tokens(texts)
    known = torch.cat([_normed(embedded[:, 1:]), _normed(last[:, :-1])], dim=-1)
    return _least_squares(known, last[:, 1:])


def _say(
    model: PreTrainedModel, generator: torch.Generator
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Random texts, and the model's hidden states behind each layer; last of all, normed."""
    texts = torch.randint(10, model.config.vocab_size, (_TEXTS, _LENGTH), generator=generator)
    said = model.model(texts, output_hidden_states=True)
    return texts, [*said.hidden_states[:-1], said.hidden_states[-1], said.last_hidden_state]


def _normed(states: torch.Tensor) -> torch.Tensor:
    return states / states.pow(2).mean(-1, keepdim=True).sqrt()


def _least_squares(known: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The matrix that makes the most of ``known`` [texts, tokens, width]; float32."""
    solution = torch.linalg.lstsq(known.flatten(0, 1).double(), wanted.flatten(0, 1).double())
    return solution.solution.T.float()
