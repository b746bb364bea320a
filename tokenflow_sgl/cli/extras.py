"""Modules that commands need and a plain installation does not have."""

from __future__ import annotations

import importlib.util

from tokenflow_sgl.cli.failing import Exit, fail

_REPLAY = "tokenflow-sgl[replay]"
_BROUGHT_BY = {
    "aiohttp": _REPLAY,
    "grafana_foundation_sdk": "tokenflow-sgl[grafana]",
    "jinja2": _REPLAY,
    "matplotlib": _REPLAY,
    "optuna": "tokenflow-sgl[tune]",
    "pyarrow": _REPLAY,
    "sglang": "tokenflow-sgl[sglang]",
    "tokenflow_sgl_emulator": "tokenflow-sgl-emulator",
}
RUNS = ("aiohttp", "pyarrow")
"""Needed to replay traces and to read runs."""
PAGES = ("jinja2", "matplotlib")
"""Needed for pages with plots."""


def need(what: str, *modules: str) -> None:
    """Exit with 2 and the command that installs it, if a module is missing.

    what: What needs the modules; the sentence begins with it.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        packages = " ".join(dict.fromkeys(f"'{_BROUGHT_BY[name]}'" for name in missing))
        fail(f"{what} needs {', '.join(missing)}: pip install {packages}", Exit.usage)
