"""An emulated device whose words are real: what it serves, and that its KV is moved."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # SGLang warns on import that there is no GPU
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

    from tokenflow_sgl_emulator.archs import timed_llama
    from tokenflow_sgl_emulator.host_pool import TorchCopies
    from tokenflow_sgl_emulator.timed.timed_host_pool import TimedHostPool
    from tokenflow_sgl_emulator.timed.words_host_pool import WordsHostPool

from tokenflow_sgl_emulator.timed import words


def model(folder: Path, **config: object) -> Path:
    given = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 30, **config}
    (folder / "config.json").write_text(json.dumps(given))
    return folder


def test_the_class_that_takes_time_is_loaded(tmp_path) -> None:
    arguments = words.words_arguments(model(tmp_path), 30)
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert given["--model-path"] == str(tmp_path)
    (named,) = json.loads(given["--json-model-override-args"])["architectures"]
    assert named == timed_llama.EntryClass.__name__


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"num_hidden_layers": 4}, r"has 4 layers, and the profile is of 30: allowed are as many"),
        ({"architectures": ["Qwen3ForCausalLM"]}, r"'Qwen3ForCausalLM'; allowed is Llama"),
        ({"architectures": []}, r"is no folder of a model"),
    ],
)
def test_other_models_are_refused(tmp_path, config, says) -> None:
    with pytest.raises(ValueError, match=says):
        words.words_arguments(model(tmp_path, **config), 30)


def test_no_folder_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"--words is .*nowhere', which is no folder of a model"):
        words.words_arguments(tmp_path / "nowhere", 30)


def test_copies_are_made_and_take_time(monkeypatch) -> None:
    done: list[str] = []
    for kind in (TorchCopies, TimedHostPool):
        for name in ("load_to_device_per_layer", "backup_from_device_all_layer"):
            note = f"{kind.__name__}.{name}"
            monkeypatch.setattr(kind, name, lambda *_, note=note, **__: done.append(note))
    pool = WordsHostPool.__new__(WordsHostPool)
    pool.load_to_device_per_layer(None, [], [], 0, "kernel")
    pool.backup_from_device_all_layer(None, [], [], "kernel")
    assert done == [
        "TorchCopies.load_to_device_per_layer",
        "TimedHostPool.load_to_device_per_layer",
        "TorchCopies.backup_from_device_all_layer",
        "TimedHostPool.backup_from_device_all_layer",
    ]
    assert issubclass(WordsHostPool, MHATokenToKVPoolHost)


@pytest.mark.parametrize(("value", "real"), [("1", True), ("0", False), (None, False)])
def test_words_are_made_up_unless_they_are_asked_for(monkeypatch, value, real) -> None:
    monkeypatch.delenv(words.WORDS_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(words.WORDS_VARIABLE, value)
    assert words.words_are_real() is real
