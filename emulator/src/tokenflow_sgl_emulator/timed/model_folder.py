"""The model folder of an emulated model: a configuration and a tokenizer, no weights."""

import json
import tempfile
from pathlib import Path

from tokenflow_sgl_emulator.tokenizer import BOS_ID, EOS_ID, PAD_ID, make_tokenizer

VOCAB = 4096
CONTEXT = 131072
"""Longest context, tokens."""
_HEAD_DIM = 2  # KV is never read, so its rows may be as small as SGLang allows


def write_model_folder(path: Path, layers: int) -> None:
    """Write what SGLang needs to serve an emulated model; a complete folder is left alone.

    The model has the target's number of layers, because SGLang loads KV layer by layer, and the
    smallest sizes in everything else.

    Args:
        path: Folder to write; appears complete or not at all.
        layers: Layers that hold KV.
    """
    config = {
        "architectures": ["EmulatedForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": VOCAB,
        "hidden_size": _HEAD_DIM,
        "intermediate_size": _HEAD_DIM,
        "num_hidden_layers": layers,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": _HEAD_DIM,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
        "tie_word_embeddings": True,
    }
    text = json.dumps(config, indent=2) + "\n"
    if (path / "config.json").exists() and (path / "config.json").read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = Path(scratch) / "model"
        made.mkdir()
        make_tokenizer(VOCAB).save_pretrained(made)
        (made / "config.json").write_text(text)
        if path.exists():  # of another version
            path.rename(Path(scratch) / "old")
        made.rename(path)


def main(argv: list[str]) -> None:
    """Called by :mod:`tokenflow_sgl_emulator.serve` with the folder and the number of layers."""
    write_model_folder(Path(argv[1]), int(argv[2]))
