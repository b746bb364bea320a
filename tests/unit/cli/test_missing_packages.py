"""What each command says where packages are missing: once, all of them, as pip takes it."""

import importlib.metadata
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

from tokenflow_sgl import pip_hints
from tokenflow_sgl.pip_hints import pip_install

EVERY = [
    *("aiconfigurator_core", "aiohttp", "grafana_foundation_sdk", "jinja2", "matplotlib"),
    *("optuna", "pyarrow", "ray", "sglang", "tokenflow_sgl_emulator"),
]
PAGE = ("pyarrow", "jinja2", "matplotlib")
COMMANDS = {
    "replay h200-a": ("aiohttp", "pyarrow"),
    "replay h200-a --concurrency 1,8": ("aiohttp", "pyarrow", "matplotlib"),
    "report somewhere --plot both.png": ("pyarrow", "matplotlib"),
    "report somewhere": ("pyarrow",),
    "report somewhere --html page.html": PAGE,
    "simulate --trace h200-a": (*PAGE, "aiconfigurator_core"),
    "simulate --trace h200-a --device rtx4090": PAGE,
    "simulate --trace h200-a --sweep max_streams=1,2 --ray": (
        *(*PAGE, "aiconfigurator_core", "ray"),
    ),
    "capacity --trace h200-a": (*PAGE, "aiconfigurator_core"),
    "capacity --trace h200-a --ray": (*PAGE, "aiconfigurator_core", "ray"),
    "tune --trace h200-a --ray": ("optuna", *PAGE, "aiconfigurator_core", "ray"),
    "plan 1000 2000": ("aiconfigurator_core",),
    "plan 1000 2000 --plot plan.png": ("aiconfigurator_core", "matplotlib"),
    "profile show h100 llama3-8b --plot times.png": ("aiconfigurator_core", "matplotlib"),
    "trace stats h200-a --plot trace.png": ("matplotlib",),
    "dashboard build": ("grafana_foundation_sdk",),
    "dashboard render http://127.0.0.1:9": ("matplotlib",),
    "top --web": ("aiohttp", "jinja2"),
    "demo": ("sglang", "tokenflow_sgl_emulator", "matplotlib", "aiohttp", "pyarrow"),
    "model": ("tokenflow_sgl_emulator",),
    "serve-emulated": ("sglang", "tokenflow_sgl_emulator", "aiconfigurator_core"),
}
WITHOUT = f"""
import sys
sys.modules.update(dict.fromkeys({EVERY}))  # None: cannot be imported, and has no spec
from tokenflow_sgl.cli import main
main()
"""


def missing_of(command, folder):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *shlex.split(command)],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert not done.stdout
    found = re.fullmatch(r"[\w -]+ needs ([\w, ]+): pip install (.+)\n", done.stderr)
    assert found, done.stderr
    return found[1].split(", "), shlex.split(found[2])


@pytest.mark.parametrize("command", COMMANDS)
def test_one_sentence_names_all_that_a_command_lacks(tmp_path, command):
    modules, packages = missing_of(command, tmp_path)
    assert sorted(modules) == sorted(COMMANDS[command])
    assert len(packages) == len(modules)
    assert not [each for each in packages if "[" in each], "extras of ours are on no index"
    assert not [*tmp_path.iterdir()], "nothing was begun"


def test_all_that_is_named_is_what_this_package_requires():
    ours = {
        Requirement(line).name: Requirement(line).specifier
        for line in importlib.metadata.requires("tokenflow-sgl")
    }
    for module in EVERY[:-1]:
        (text,) = shlex.split(pip_install(module).removeprefix("pip install "))
        named = Requirement(text)
        assert named.specifier == ours[named.name], module
        assert named.specifier, "a version that is too old would do"


def test_pip_takes_the_command():
    # Without an index: what is asked for is here, and a name or a bound that pip does not
    # understand, or does not find in this environment, fails.
    command = pip_install("aiohttp", "pyarrow", "jinja2", "matplotlib", "grafana_foundation_sdk")
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command), "--dry-run", "--no-index"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Requirement already satisfied") >= 5


def installed_from(monkeypatch, source, package):
    monkeypatch.setattr(pip_hints, "__file__", str(package / "pip_hints.py"))
    text = None if source is None else json.dumps(source)
    ours = SimpleNamespace(read_text=lambda name: {"direct_url.json": text}[name])
    monkeypatch.setattr(pip_hints.importlib.metadata, "distribution", lambda name: ours)
    return shlex.split(pip_install("tokenflow_sgl_emulator"))[2:]


@pytest.fixture
def clone(tmp_path):
    folder = tmp_path / "my clone" / "emulator"
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").touch()
    return folder.parent


@pytest.mark.parametrize("editable", [True, False])
def test_the_emulator_is_a_folder_of_the_clone(monkeypatch, clone, editable):
    source = {"url": clone.as_uri(), "dir_info": {"editable": True} if editable else {}}
    site = clone / "tokenflow_sgl" if editable else Path("/site-packages/tokenflow_sgl")
    assert installed_from(monkeypatch, source, site) == [str(clone / "emulator")]


def test_the_emulator_is_a_folder_beside_sources_that_are_not_installed(monkeypatch, clone):
    assert installed_from(monkeypatch, None, clone / "tokenflow_sgl") == [str(clone / "emulator")]


def test_the_emulator_is_in_the_repository_that_pip_cloned(monkeypatch):
    source = {
        "url": "https://example.org/tokenflow.git",
        "vcs_info": {"vcs": "git", "commit_id": "abc123", "requested_revision": "main"},
    }
    (text,) = installed_from(monkeypatch, source, Path("/site-packages/tokenflow_sgl"))
    assert Requirement(text).name == "tokenflow-sgl-emulator"
    assert Requirement(text).url == (
        "git+https://example.org/tokenflow.git@abc123#subdirectory=emulator"
    )


def test_the_emulator_is_in_the_index_that_we_came_from(monkeypatch):
    found = installed_from(monkeypatch, None, Path("/site-packages/tokenflow_sgl"))
    assert found == ["tokenflow-sgl-emulator"]


def test_a_clone_that_is_gone_is_not_named(monkeypatch, tmp_path):
    source = {"url": (tmp_path / "gone").as_uri(), "dir_info": {}}
    found = installed_from(monkeypatch, source, Path("/site-packages/tokenflow_sgl"))
    assert found == ["tokenflow-sgl-emulator"]
