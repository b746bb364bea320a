"""A tiny DeepSeek V4 with random weights, as `models` makes other kinds."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tokenflow_sgl_emulator.compressed import OVERLAPPING
from tokenflow_sgl_emulator.compressed.packed_rows import INDEX_WIDTH, ROTATED, WIDTH
from tokenflow_sgl_emulator.tokenizer import BOS_ID, EOS_ID, PAD_ID, make_tokenizer, word_ids

RATIOS = (0, 4, 128, 4)
"""Of its layers: one has a window only; both that keep a row for 4 tokens have an indexer."""
HIDDEN, INNER, VOCAB, HEADS, INDEX_HEADS = 64, 128, 512, 2, 2
_CHOSEN = 16
_WINDOW = 128
_BANNED = -200.0
_DAMPED = 0.2
"""Of what each layer but the first adds, where there are drafts: the first says most of it all."""


def make_tiny_compressed(path: str | Path, *, drafts: bool = False, seed: int = 0) -> Path:
    """Write config, weights (float32) and tokenizer; only the made-up words are generated.

    Args:
        path: Folder to write; made if missing.
        drafts: With a layer for drafts (NEXTN), a copy of the first layer. Many of its drafts are
            right, for the other layers are damped, so the text is another one.
        seed: Equal seeds give equal weights.

    Returns:
        ``path``, ready for ``--model-path``.
    """
    out = Path(path)
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(_config(), indent=2) + "\n")
    weights = _weights(seed)
    if drafts:
        _add_drafts(weights)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    make_tokenizer(VOCAB).save_pretrained(out)
    return out


def _config() -> dict[str, Any]:
    """What SGLang reads of V4's configurations, most of it by the class that it takes for V4's."""
    return dict(
        architectures=["DeepseekV4ForCausalLM"],
        model_type="deepseek_v4",
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        moe_intermediate_size=INNER,
        vocab_size=VOCAB,
        num_hidden_layers=len(RATIOS),
        num_attention_heads=HEADS,
        heads_of_weights=HEADS,
        num_key_value_heads=1,
        head_dim=WIDTH,
        qk_rope_head_dim=ROTATED,
        qk_nope_head_dim=WIDTH - ROTATED,
        v_head_dim=WIDTH,
        kv_lora_rank=WIDTH,
        q_lora_rank=HIDDEN,
        sliding_window=_WINDOW,
        index_head_dim=INDEX_WIDTH,
        index_n_heads=INDEX_HEADS,
        index_topk=_CHOSEN,
        compress_ratios=[*RATIOS],
        hc_mult=1,
        n_routed_experts=2,
        num_experts_per_tok=1,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=len(RATIOS),
        max_position_embeddings=32768,
        rms_norm_eps=1e-6,
        rope_theta=10000,
        rope_scaling=None,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
        tie_word_embeddings=False,
        torch_dtype="float32",
    )


def _weights(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def some(*shape: int, spread: float = 0.2) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * spread

    found = {
        "embed_tokens.weight": some(VOCAB, HIDDEN, spread=1.0),
        "lm_head.weight": some(VOCAB, HIDDEN),
    }
    for layer, ratio in enumerate(RATIOS):
        at, parts = f"layers.{layer}.self_attn.", 2 if ratio == OVERLAPPING else 1
        found[f"{at}q_proj.weight"] = some(HEADS * WIDTH, HIDDEN)
        found[f"{at}kv_proj.weight"] = some(WIDTH, HIDDEN)
        found[f"{at}o_proj.weight"] = some(HIDDEN, HEADS * WIDTH, spread=0.15)
        if ratio:
            found[f"{at}gate.weight"] = some(2 * parts * WIDTH, HIDDEN)
            found[f"{at}bias"] = some(ratio, parts * WIDTH)
        if ratio == OVERLAPPING:
            found[f"{at}index_q_proj.weight"] = some(INDEX_HEADS * INDEX_WIDTH, HIDDEN)
            found[f"{at}index_gate.weight"] = some(2 * parts * INDEX_WIDTH, HIDDEN)
            found[f"{at}index_bias"] = some(ratio, parts * INDEX_WIDTH)
        found[f"layers.{layer}.up_proj.weight"] = some(INNER, HIDDEN)
        found[f"layers.{layer}.down_proj.weight"] = some(HIDDEN, INNER)
    # As `models` does it: residual channel 0 is constant, and so a bias of the head.
    found["embed_tokens.weight"][:, 0] = 1.0
    for name in found:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            found[name][0] = 0.0
    words = word_ids(VOCAB)
    banned = torch.ones(VOCAB, dtype=torch.bool)
    banned[words.start : words.stop] = False
    head = found["lm_head.weight"]
    head[:, 0] = 0.0
    head[banned, 0] = _BANNED
    return found


def _add_drafts(weights: dict[str, torch.Tensor]) -> None:
    """The layer for drafts sees the tokens that the first layer sees, from the next token on."""
    first = "layers.0."
    for name in [*weights]:
        if name.startswith(first):
            weights[f"mtp.decoder.{name.removeprefix(first)}"] = weights[name].clone()
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] *= _DAMPED
    weights["mtp.h_proj.weight"] = torch.zeros(HIDDEN, HIDDEN)
