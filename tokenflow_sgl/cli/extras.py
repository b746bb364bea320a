"""Modules that commands need and a plain installation does not have."""

from __future__ import annotations

from tokenflow_sgl.cli.failing import Exit, fail
from tokenflow_sgl.pip_hints import missing, pip_install

RUNS = ("pyarrow",)
"""Needed to read and write runs."""
REPLAYS = ("aiohttp", *RUNS)
"""Needed to replay traces."""
PAGES = ("jinja2", "matplotlib")
"""Needed for pages with plots."""
WEB = ("aiohttp", "jinja2")
"""Needed for the live page."""
RAY = ("ray",)
"""Needed for --ray."""


def need(what: str, *modules: str) -> None:
    """Exit with 2 and the command that installs them, if modules are missing.

    A command asks once, for all that its options need, so that one installation is enough.

    what: What needs the modules; the sentence begins with it.
    """
    absent = missing(modules)
    if absent:
        fail(f"{what} needs {', '.join(absent)}: {pip_install(*absent)}", Exit.usage)
