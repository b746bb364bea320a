"""Llama checkpoints out of GGUF files: names, order of rows, and a byte-level tokenizer.

llama.cpp gives tensors names of its own and sorts the rows of queries and keys by pairs that are
rotated together; transformers and SGLang rotate the first half of a head against the second one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast

_CONTROL = 3
"""GGUF's kind of a token that no text spells."""
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_REST = {"token_embd": "embed_tokens", "output_norm": "norm"}


def write_checkpoint(source: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write config, weights and tokenizer of a Llama in GGUF, as transformers and SGLang read them.

    Args:
        source: The GGUF file. Its output head is its embedding, its tokenizer GPT-2's kind.
        folder: Where to; made if it is not there.
        dtype: Type of the weights. What is quantised is computed in float32 and rounded once.

    Raises:
        ValueError: It has a tensor that this does not know.
    """
    reader = GGUFReader(source)
    folder.mkdir(parents=True, exist_ok=True)
    config = _config(reader)
    config.dtype = dtype
    config.save_pretrained(folder)
    weights = folder / "model.safetensors"
    save_file(
        {name: weight.to(dtype) for name, weight in _weights(reader, config)},
        weights,
        metadata={"format": "pt"},
    )
    weights.chmod(0o644)  # as the other files: safetensors lets only its owner read it
    ends = {"bos_token_id": config.bos_token_id, "eos_token_id": config.eos_token_id}
    (folder / "generation_config.json").write_text(json.dumps(ends) + "\n")
    _tokenizer(reader).save_pretrained(folder)


def _field(reader: GGUFReader, name: str) -> Any:
    field = reader.get_field(name)
    if field is None:
        raise ValueError(f"the GGUF file has no field {name!r}")
    return field.contents()


def _config(reader: GGUFReader) -> LlamaConfig:
    def of(name: str) -> Any:
        return _field(reader, f"llama.{name}")

    heads, hidden = of("attention.head_count"), of("embedding_length")
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=of("vocab_size"),
        hidden_size=hidden,
        intermediate_size=of("feed_forward_length"),
        num_hidden_layers=of("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=of("attention.head_count_kv"),
        head_dim=hidden // heads,
        max_position_embeddings=of("context_length"),
        # GGUF keeps it in float32: 9.999999747378752e-06.
        rms_norm_eps=float(np.format_float_scientific(np.float32(of(_EPSILON)))),
        rope_parameters={"rope_type": "default", "rope_theta": float(of("rope.freq_base"))},
        bos_token_id=_field(reader, "tokenizer.ggml.bos_token_id"),
        eos_token_id=_field(reader, "tokenizer.ggml.eos_token_id"),
        pad_token_id=_field(reader, "tokenizer.ggml.padding_token_id"),
        tie_word_embeddings=True,
    )


_EPSILON = "attention.layer_norm_rms_epsilon"


def _weights(reader: GGUFReader, config: LlamaConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """By the names of transformers, in float32."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for tensor in reader.tensors:
        parts = tensor.name.split(".")
        if len(parts) == 4 and parts[0] == "blk" and parts[2] in _BLOCK:
            name = f"model.layers.{parts[1]}.{_BLOCK[parts[2]]}.{parts[3]}"
        elif len(parts) == 2 and parts[0] in _REST:
            name = f"model.{_REST[parts[0]]}.{parts[1]}"
        else:
            raise ValueError(f"the GGUF file has a tensor {tensor.name!r}, which is not known here")
        weight = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if parts[-2] in heads:
            weight = _in_halves(weight, heads[parts[-2]])
        yield name, torch.from_numpy(weight)


def _in_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head: from pairs to halves."""
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, weight.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)


def _tokenizer(reader: GGUFReader) -> PreTrainedTokenizerFast:
    def of(name: str) -> Any:
        return _field(reader, f"tokenizer.ggml.{name}")

    words, kinds = of("tokens"), of("token_type")
    merges = [tuple(each.split(" ")) for each in of("merges")]
    core = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges=merges))
    # What llama.cpp calls "smollm": each digit is a word of its own.
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(
        [
            AddedToken(word, special=True, normalized=False)
            for word, kind in zip(words, kinds, strict=True)
            if kind == _CONTROL
        ]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=words[of("bos_token_id")],
        eos_token=words[of("eos_token_id")],
        pad_token=words[of("padding_token_id")],
        unk_token=words[of("unknown_token_id")],
        model_max_length=_field(reader, "llama.context_length"),
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _field(reader, "tokenizer.chat_template")
    return tokenizer
