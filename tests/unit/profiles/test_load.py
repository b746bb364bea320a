from __future__ import annotations

import builtins
import subprocess
import sys
from typing import Any

import pytest

from tokenflow_sgl.lab.profiles import DEVICES, MODELS, ProfileError, load_profile
from tokenflow_sgl.lab.profiles.load import pool_tokens


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ProfileError, match=r"device is 'h20'; allowed are h200, .*x8, .*l20x4\."):
        load_profile("h20", "llama3-8b")
    with pytest.raises(ProfileError, match=r"model is 'gpt'; allowed are llama3-8b, .*qwen3-32b\."):
        load_profile("rtx4090", "gpt")


def test_a_model_too_large_is_refused() -> None:
    with pytest.raises(ProfileError, match="qwen3-32b does not fit on rtx4090: the weights take"):
        load_profile("rtx4090", "qwen3-32b")


def test_a_model_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ProfileError, match=r"qwen2\.5-7b cannot be divided on h100x8: it has 28 h"):
        load_profile("h100x8", "qwen2.5-7b")


def test_a_group_has_the_pool_of_sglangs_share_of_each_device() -> None:
    memory, moe = DEVICES["h100x8"].memory, MODELS["qwen3-235b-a22b"]
    # What is kept back of 81,559 MiB by `test_share_of_a_group_by_hand`; 94 layers with one head.
    free = round((81559 - 15312) / 81559, 3) * memory - moe.held_weight_bytes(8) / 8
    assert pool_tokens(DEVICES["h100x8"], moe) == int(free / (2 * 94 * 128 * 2))


@pytest.fixture(autouse=True)
def no_cache(tmp_path, monkeypatch) -> None:
    """Step times that a run before has kept are not there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def _without(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    load_profile.cache_clear()
    real = builtins.__import__

    def importing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "aiconfigurator_core":
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return real(name, *args, **kwargs)

    for name in [name for name in sys.modules if name.split(".")[0] == "aiconfigurator_core"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", importing)


def test_missing_package_gives_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, "aiconfigurator_core")
    with pytest.raises(ProfileError, match=r"pip install 'aiconfigurator-core>="):
        load_profile("h200", "llama3-8b")
    assert load_profile("rtx4090", "llama3-8b").device == "rtx4090"


def test_a_broken_package_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, "yaml")
    with pytest.raises(ModuleNotFoundError, match="yaml"):
        load_profile("h200", "llama3-8b")


def test_import_is_light() -> None:
    heavy = ("sglang", "torch", "transformers", "aiconfigurator_core", "matplotlib")
    code = (
        "import sys, tokenflow_sgl.lab.profiles, tokenflow_sgl.cli.profile\n"
        f"print([name for name in {heavy} if name in sys.modules]\n"
        "      + [name for name in sys.modules if name.startswith('tokenflow_sgl.engine')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
