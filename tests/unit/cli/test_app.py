import importlib.util
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import tokenflow_sgl
from tokenflow_sgl.cli.app import app


def run(*args):
    return CliRunner().invoke(app, args)


def test_version():
    result = run("--version")
    assert result.exit_code == 0
    assert result.output.strip() == f"tokenflow-sgl {tokenflow_sgl.__version__}"


def test_help_lists_the_demo():
    result = run("--help")
    assert result.exit_code == 0
    assert "demo" in result.output


def test_demo_help_explains_itself():
    result = run("demo", "--help")
    assert result.exit_code == 0
    for option in ("--scheduler", "--readers", "--kv-tokens", "--seed", "--output"):
        assert option in result.output


def test_unknown_scheduler_is_refused():
    assert run("demo", "--scheduler", "magic").exit_code == 2


def test_demo_names_what_is_missing(monkeypatch):
    found, gone = importlib.util.find_spec, ("sglang", "aiohttp", "pyarrow")
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name in gone else found(name)
    )
    result = run("demo")
    assert result.exit_code == 2
    assert result.output == (
        "The demo needs sglang, aiohttp, pyarrow: "
        "pip install sglang==0.5.23 'aiohttp>=3.10' 'pyarrow>=15'\n"
    )


@pytest.mark.parametrize("module", ["tokenflow_sgl", "tokenflow_sgl.cli"])
def test_import_loads_no_engine(module):
    heavy = ["sglang", "torch", "transformers", "tokenflow_sgl_emulator"]
    heavy += ["aiohttp", "matplotlib", "numpy", "pyarrow", "scipy"]
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
