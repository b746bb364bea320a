"""The builder of made-up runs, for every test of the report."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

# The suite imports test modules by path, so a helper beside them is loaded by path too.
_SPEC = importlib.util.spec_from_file_location(
    "report_synthetic", Path(__file__).with_name("synthetic.py")
)
assert _SPEC is not None and _SPEC.loader is not None
_SYNTHETIC = importlib.util.module_from_spec(_SPEC)
sys.modules["report_synthetic"] = _SYNTHETIC
_SPEC.loader.exec_module(_SYNTHETIC)


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    return _SYNTHETIC


@pytest.fixture(scope="session")
def pair() -> tuple[Any, Any]:
    """The toy server's two policies on the same requests."""
    return _SYNTHETIC.make_run("stock"), _SYNTHETIC.make_run("tokenflow")


@pytest.fixture
def one_request() -> Any:
    """A run of one request: `one_request(times, **columns)`."""

    def make(times: Any, *, info: dict[str, Any] | None = None, **columns: Any) -> Any:
        row = _SYNTHETIC.request_row(0, times, **columns)
        return _SYNTHETIC.run_of([row], [times], **(info or {}))

    return make


@pytest.fixture(scope="session")
def hostile() -> str:
    """A name that wants to be markup, a formula, a hidden label and a terminal command at once."""
    return "_$\\bad$<script>alert('x')</script>{{7*7}}\"onload=x|[red]b[/red]\x1b[31m\n`"
