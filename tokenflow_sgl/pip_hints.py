"""The command that installs what is missing, spelled so that it works wherever we came from.

It names the packages themselves, with the versions of our own requirements. An extra of ours
(`tokenflow-sgl[replay]`) would be looked for in an index, and may not be there.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

_OURS = "tokenflow-sgl"
_EMULATOR = "tokenflow-sgl-emulator"
_EMULATOR_FOLDER = "emulator"
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(\[[^]]*\])?\s*([^;]*)")


def missing(modules: Iterable[str]) -> list[str]:
    """Which of these top-level modules are not installed, each once, in the order given."""
    return [name for name in dict.fromkeys(modules) if importlib.util.find_spec(name) is None]


def pip_install(*modules: str) -> str:
    """The command that installs what brings these top-level modules, for a POSIX shell."""
    return f"pip install {' '.join(shlex.quote(_wanted(name)) for name in modules)}"


def _wanted(module: str) -> str:
    name = _normal(module)
    return _emulator() if name == _EMULATOR else _required().get(name, name)


def _required() -> dict[str, str]:
    """Our requirements, of the extras, too, by name: `pyarrow` to `pyarrow>=15`."""
    try:
        lines = importlib.metadata.requires(_OURS) or []
    except importlib.metadata.PackageNotFoundError:  # run from its sources, not installed
        lines = []
    found = [match for line in lines if (match := _REQUIREMENT.match(line))]
    return {_normal(match[1]): f"{match[1]}{match[3].strip()}" for match in found}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _emulator() -> str:
    """The emulator, which is in our repository: a folder, a URL, or its name in our index."""
    beside = Path(__file__).parent.parent / _EMULATOR_FOLDER
    source = _direct_url()
    url = urlsplit(source.get("url", ""))
    if "dir_info" in source and url.scheme == "file":
        beside = Path(url2pathname(url.path)) / _EMULATOR_FOLDER
    if (beside / "pyproject.toml").is_file():
        return str(beside)
    if "vcs_info" in source:
        vcs = source["vcs_info"]
        at = f"{vcs['vcs']}+{source['url']}@{vcs['commit_id']}"
        return f"{_EMULATOR} @ {at}#subdirectory={_EMULATOR_FOLDER}"
    return _EMULATOR


def _direct_url() -> dict[str, Any]:
    """What pip has written of where we were installed from (PEP 610); empty: from an index."""
    try:
        text = importlib.metadata.distribution(_OURS).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        text = None
    found: dict[str, Any] = json.loads(text) if text else {}
    return found
