from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from tokenflow_sgl_emulator.cli import main
from tokenflow_sgl_emulator.models import LORA_TARGETS, make_tiny_lora, make_tiny_model
from tokenflow_sgl_emulator.tokenizer import EOS_ID, make_tokenizer, word_ids

TEXTS = [
    "Hello, world!",
    "  leading and trailing  ",
    "tabs\tand\nnew\r\nlines",
    "naïve façade, Ελληνικά, 你好世界, 🙂👩‍🚀",
    "".join(map(chr, range(256))),
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_round_trips(models: dict[str, Path], text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(models["llama"])
    ids = tokenizer.encode(text)
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text


def test_every_id_decodes_and_words_are_distinct() -> None:
    tokenizer = make_tokenizer(6000)
    words = [tokenizer.decode([i]) for i in word_ids(6000)]
    assert len(set(words)) == len(words) == 6000 - 259
    assert all(word.startswith(" ") and word[1:].isalpha() for word in words)


def test_chat_template_renders(models: dict[str, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(models["qwen3"])
    chat = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "user: Hi\nassistant:"


def test_weights_depend_on_the_seed_only(tmp_path: Path) -> None:
    torch.manual_seed(1)
    made = [make_tiny_model(tmp_path / str(i), layers=1, seed=s) for i, s in enumerate((5, 5, 6))]
    same, again, other = (load_file(path / "model.safetensors") for path in made)
    assert all(torch.equal(same[name], again[name]) for name in same)
    assert not torch.equal(same["lm_head.weight"], other["lm_head.weight"])


def test_only_words_are_likely(reference: dict[str, torch.nn.Module]) -> None:
    ids = torch.randint(0, 512, (4, 64), generator=torch.Generator().manual_seed(0))
    for model in reference.values():
        with torch.no_grad():
            chances = model(ids).logits.softmax(-1)
        assert chances[..., : word_ids(512).start].max() < 1e-9


def test_no_two_tokens_are_equally_likely(reference: dict[str, torch.nn.Module]) -> None:
    """Nor those that only a grammar allows: the greedy choice among equals depends on the batch."""
    ids = torch.randint(0, 512, (4, 64), generator=torch.Generator().manual_seed(0))
    for name, model in reference.items():
        with torch.no_grad():
            logits = model(ids).logits
        gaps = logits.sort(-1).values.diff(dim=-1)
        # Of 131,000 gaps the narrowest are near 0, as of any numbers drawn at random.
        assert (gaps < 1e-4).double().mean() < 0.02, name


def test_every_token_can_be_asked_for(tmp_path: Path) -> None:
    path = make_tiny_model(tmp_path, layers=1, words_only=False)
    head = load_file(path / "model.safetensors")["lm_head.weight"]
    assert head[EOS_ID].std() > 0.1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"arch": "gpt2"}, "arch must be one of"),
        ({"hidden": 60}, "multiple of 2"),
        ({"heads": 4, "kv_heads": 3}, "multiple of kv_heads"),
        ({"vocab": 259}, "no word to generate"),
        ({"vocab": 100, "words_only": False}, "at least 259"),
    ],
)
def test_impossible_sizes_are_refused(
    tmp_path: Path, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_tiny_model(tmp_path, **arguments)  # type: ignore[arg-type]


def test_lora_has_every_target(lora: Path) -> None:
    tensors = load_file(lora / "adapter_model.safetensors")
    assert len(tensors) == 4 * len(LORA_TARGETS) * 2
    key = "base_model.model.model.layers.3.mlp.down_proj.lora_{}.weight"
    assert tensors[key.format("A")].shape == (4, 128)
    assert tensors[key.format("B")].shape == (64, 4)


def test_lora_refuses_unknown_targets(tmp_path: Path, models: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="lm_head"):
        make_tiny_lora(tmp_path, models["llama"], targets=("q_proj", "lm_head"))


def test_command_line_writes_the_same_model(tmp_path: Path, models: dict[str, Path]) -> None:
    main(["--arch", "qwen3", str(tmp_path / "model"), "--lora", str(tmp_path / "lora")])
    made = load_file(tmp_path / "model" / "model.safetensors")
    wanted = load_file(models["qwen3"] / "model.safetensors")
    assert made.keys() == wanted.keys()
    assert all(torch.equal(made[name], wanted[name]) for name in made)
    assert (tmp_path / "lora" / "adapter_config.json").exists()
