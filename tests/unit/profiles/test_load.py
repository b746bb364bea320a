from __future__ import annotations

import builtins
import subprocess
import sys
from typing import Any

import pytest

from tokenflow_sgl.lab.profiles import ProfileError, load_profile


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ProfileError, match=r"device is 'h20'; allowed are h200, h100, .*l20x4\."):
        load_profile("h20", "llama3-8b")
    with pytest.raises(ProfileError, match=r"model is 'gpt'; allowed are llama3-8b, .*qwen3-32b\."):
        load_profile("rtx4090", "gpt")


def test_a_model_too_large_is_refused() -> None:
    with pytest.raises(ProfileError, match="qwen3-32b does not fit on rtx4090: the weights take"):
        load_profile("rtx4090", "qwen3-32b")


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
