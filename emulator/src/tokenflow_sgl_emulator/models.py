"""Tiny models with random weights: real checkpoints of a few hundred kilobytes.

Llama and Qwen3 attend to all tokens; DeepSeek V2 keeps a latent row per token (MLA); half of the
layers of "qwen3-window" attend to a window of the last tokens only; half of those of LFM2 are short
convolutions and half of those of Qwen3.5 gated delta networks, which keep a state per request.

They are made on the spot, always the same for the same arguments, so tests and demos need neither
a download nor a GPU. The text is gibberish; what they are for is everything around it: scheduling,
caching, preemption, streaming, and whether two runs give the same tokens.
"""

import json
import math
from itertools import cycle, islice
from pathlib import Path
from typing import Literal, get_args

import torch
from safetensors.torch import save_file
from transformers import (
    AutoConfig,
    DeepseekV2ForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3_5ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tokenflow_sgl_emulator.tiny_configs import (
    gated_deltas,
    latent_rows,
    name_for_sglang,
    window_layers,
)
from tokenflow_sgl_emulator.tokenizer import BOS_ID, EOS_ID, PAD_ID, make_tokenizer, word_ids

Arch = Literal["llama", "qwen3", "qwen3-window", "deepseek", "lfm2", "qwen3.5"]
ARCHS: tuple[Arch, ...] = get_args(Arch)

LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Projections that a tiny LoRA can adapt."""

WINDOW = 24
"""Tokens that a layer with a window attends to, the present one among them."""

# Measured at 0.2: the best logit leads by 0.35 in the median, float32 rounding moves logits by
# 4e-5 at most, and 100 greedy tokens contain 20 to 25 different ones. At 0.1 output falls into
# loops of one or two tokens; at 0.3 rounding errors grow three times as large.
_INIT_STD = 0.2
_QUERY_NORM = 3.0
_DECAY = 0.05
_OUTPUTS = tuple(f"{name}.weight" for name in ("o_proj", "out_proj", "down_proj", "w2"))
"""Weights of the layers' projections back to the residual stream."""
# Added to the logit of every token that must not be generated; logits stay within about +-10.
_BANNED_LOGIT = -60.0


def make_tiny_model(
    path: str | Path,
    arch: Arch = "llama",
    *,
    layers: int = 4,
    hidden: int = 64,
    intermediate: int = 128,
    heads: int = 4,
    kv_heads: int = 2,
    vocab: int = 512,
    max_positions: int = 32768,
    seed: int = 0,
    words_only: bool = True,
) -> Path:
    """Write a random model with config, safetensors weights (float32) and tokenizer.

    Args:
        path: Folder to write; made if missing, files of the same names are replaced.
        arch: ``"llama"``, ``"qwen3"``, ``"qwen3-window"``, ``"deepseek"``, ``"lfm2"`` or
            ``"qwen3.5"``.
        layers: Number of decoder layers.
        hidden: Width of the residual stream; a multiple of ``2 * heads``.
        intermediate: Width of the MLP.
        heads: Attention heads, each ``hidden // heads`` wide.
        kv_heads: Key-value heads; divides ``heads``, and is divided by the tensor-parallel size.
            DeepSeek has none.
        vocab: Number of token ids, at least 259.
        max_positions: Longest context, in tokens.
        seed: Equal seeds and sizes give equal weights.
        words_only: Output only the made-up words, so that the text is readable and a run ends
            at ``max_new_tokens``, never at the end-of-sequence token (chance about e**-50 per
            token at temperature 1). False lets every token be generated, end-of-sequence too.

    Returns:
        ``path`` as a ``Path``, ready for ``--model-path``.

    Raises:
        ValueError: Unknown ``arch`` or sizes that do not fit together.
    """
    if arch not in ARCHS:
        raise ValueError(f"arch must be one of {ARCHS}, got {arch!r}")
    if hidden % (2 * heads) or heads % kv_heads:
        raise ValueError(
            f"hidden ({hidden}) must be a multiple of 2 * heads ({heads}), "
            f"and heads a multiple of kv_heads ({kv_heads})"
        )
    words = word_ids(vocab)
    if words_only and not words:
        raise ValueError("words_only needs a vocab above 259, else there is no word to generate")
    tokenizer = make_tokenizer(vocab)
    sizes = dict(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=max_positions,
        initializer_range=_INIT_STD,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
        tie_word_embeddings=False,
    )
    model: PreTrainedModel
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        width = hidden // heads
        if arch == "llama":
            model = LlamaForCausalLM(LlamaConfig(**sizes, head_dim=width))
        elif arch == "deepseek":
            model = DeepseekV2ForCausalLM(latent_rows(sizes, width))
        elif arch == "lfm2":
            kinds = list(islice(cycle(("conv", "full_attention")), layers))
            model = Lfm2ForCausalLM(
                Lfm2Config(**sizes, layer_types=kinds, block_auto_adjust_ff_dim=False)
            )
            _sharpen_attention(model)
        elif arch == "qwen3.5":
            model = Qwen3_5ForCausalLM(gated_deltas(sizes, width))
            _sharpen_attention(model)
            _remember(model)
        else:
            windows = window_layers(layers, WINDOW) if arch == "qwen3-window" else {}
            model = Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=width, **windows))
            _sharpen_attention(model)
    if words_only:
        _ban_all_but(words, model)
    out = Path(path)
    model.to(torch.float32).save_pretrained(out)
    if arch == "qwen3-window":
        name_for_sglang(out / "config.json")
    tokenizer.save_pretrained(out)
    return out


def make_tiny_lora(
    path: str | Path,
    base: str | Path,
    *,
    rank: int = 4,
    alpha: float = 8.0,
    seed: int = 0,
    targets: tuple[str, ...] = LORA_TARGETS,
) -> Path:
    """Write a random LoRA adapter in PEFT's format, strong enough to change the greedy output.

    Args:
        path: Folder to write.
        base: Folder of the tiny model that it adapts; the sizes are read from its config.
        rank: Rank of the update.
        alpha: The update is scaled by ``alpha / rank``.
        seed: Equal seeds give equal adapters; different ones give different outputs.
        targets: Projections to adapt, out of ``LORA_TARGETS``.

    Returns:
        ``path`` as a ``Path``, ready for ``--lora-paths name=path``.

    Raises:
        ValueError: A target is not in ``LORA_TARGETS``.
    """
    unknown = sorted(set(targets) - set(LORA_TARGETS))
    if unknown:
        raise ValueError(f"unknown LoRA targets {unknown}; choose from {LORA_TARGETS}")
    config = AutoConfig.from_pretrained(Path(base))
    query = config.num_attention_heads * config.head_dim
    key_value = config.num_key_value_heads * config.head_dim
    hidden, wide = config.hidden_size, config.intermediate_size
    shapes = {  # (inputs, outputs) of each projection
        "q_proj": (hidden, query),
        "k_proj": (hidden, key_value),
        "v_proj": (hidden, key_value),
        "o_proj": (query, hidden),
        "gate_proj": (hidden, wide),
        "up_proj": (hidden, wide),
        "down_proj": (wide, hidden),
    }
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(config.num_hidden_layers):
        for target in targets:
            block = "self_attn" if target in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
            name = f"base_model.model.model.layers.{layer}.{block}.{target}"
            inputs, outputs = shapes[target]
            for part, shape in (("lora_A", (rank, inputs)), ("lora_B", (outputs, rank))):
                weight = torch.randn(shape, generator=generator) * _INIT_STD
                tensors[f"{name}.{part}.weight"] = weight
    out = Path(path)
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "adapter_model.safetensors")
    adapter = dict(
        peft_type="LORA",
        task_type="CAUSAL_LM",
        base_model_name_or_path=str(base),
        r=rank,
        lora_alpha=alpha,
        lora_dropout=0.0,
        bias="none",
        fan_in_fan_out=False,
        inference_mode=True,
        target_modules=list(targets),
    )
    (out / "adapter_config.json").write_text(json.dumps(adapter, indent=2) + "\n")
    return out


@torch.no_grad()
def _sharpen_attention(model: PreTrainedModel) -> None:
    """Make the scores of Qwen3 and LFM2 as spread as Llama's.

    Their norms of Q and K leave random scores so even that attention averages the context away, and
    greedy output falls into short loops in which a wrong KV row would go unnoticed.
    """
    for name, weight in model.named_parameters():
        if name.endswith(("q_norm.weight", "q_layernorm.weight")):
            weight.fill_(_QUERY_NORM)


@torch.no_grad()
def _remember(model: PreTrainedModel) -> None:
    """Make states last for some tens of tokens: random ones forget within a few."""
    for name, weight in model.named_parameters():
        if name.endswith("A_log"):
            weight.fill_(math.log(_DECAY))


@torch.no_grad()
def _ban_all_but(allowed: range, model: PreTrainedModel) -> None:
    """Lower the logit of every token outside ``allowed`` by ``_BANNED_LOGIT``, in every context.

    They keep their differences: a grammar may leave only such tokens, and among equal ones SGLang's
    greedy choice depends on whether another request of the batch is sampled.

    A linear head without bias cannot do that on random features, so residual channel 0 is kept
    constant: every embedding starts it at 1 and no layer writes to it. After the final norm it is
    positive in every context, which makes column 0 of the head a bias.
    """
    inner = model.base_model
    inner.embed_tokens.weight[:, 0] = 1.0
    for name, weight in inner.layers.named_parameters():
        if name.endswith(_OUTPUTS):
            weight[0] = 0.0
    probe = torch.tensor([[*allowed]])
    level = inner(probe).last_hidden_state[..., 0].mean()
    head = model.get_output_embeddings().weight
    banned = torch.ones(head.shape[0], dtype=torch.bool)
    banned[allowed.start : allowed.stop] = False
    head[:, 0] = 0.0
    head[banned, 0] = _BANNED_LOGIT / level
