import importlib
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import tokenflow_sgl
from tokenflow_sgl.cli.app import app

demo_command = importlib.import_module("tokenflow_sgl.cli.demo")


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
    for option in ("--scheduler", "--readers", "--bursts", "--kv-tokens", "--seed", "--output"):
        assert option in result.output


def test_unknown_scheduler_is_refused():
    assert run("demo", "--scheduler", "magic").exit_code == 2


def test_demo_names_what_is_missing(monkeypatch):
    monkeypatch.setitem(demo_command._NEEDED, "no_such_module", "some-package")
    result = run("demo")
    assert result.exit_code == 2
    assert "no_such_module" in result.output
    assert "some-package" in result.output


@pytest.mark.parametrize("module", ["tokenflow_sgl", "tokenflow_sgl.cli"])
def test_import_loads_no_engine(module):
    heavy = ("sglang", "torch", "transformers", "matplotlib", "aiohttp", "tokenflow_sgl_emulator")
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
