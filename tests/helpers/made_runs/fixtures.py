"""Made-up runs, for every test that reads runs."""

from __future__ import annotations

from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
from made_runs import synthetic as toy
from made_runs.settings import here


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    return toy


@pytest.fixture(scope="session")
def pair() -> tuple[Any, Any]:
    """The toy server's two policies on the same requests."""
    return toy.make_run("stock"), toy.make_run("tokenflow")


@pytest.fixture
def one_request() -> Any:
    """A run of one request: `one_request(times, **columns)`."""

    def make(times: Any, *, info: dict[str, Any] | None = None, **columns: Any) -> Any:
        row = toy.request_row(0, times, **columns)
        return toy.run_of([row], [times], **(info or {}))

    return make


@pytest.fixture(scope="session")
def hostile() -> str:
    """A name that wants to be markup, a formula, a hidden label and a terminal command at once."""
    return "_$\\bad$<script>alert('x')</script>{{7*7}}\"onload=x|[red]b[/red]\x1b[31m\n`"


@pytest.fixture
def in_this_process(monkeypatch, tmp_path) -> None:
    """An empty folder, and runs that a command spreads over the cores are done here."""
    monkeypatch.chdir(tmp_path)

    @contextmanager
    def here_only(*_args):
        yield here

    monkeypatch.setattr("tokenflow_sgl.lab.sim.study.spread.on_cores", here_only)
