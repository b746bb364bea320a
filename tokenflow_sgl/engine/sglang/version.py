"""Which SGLang is installed, which ones were proved, and which modules of ours are for which.

What differs between releases stands in modules beside this one. `since_0_5_23` is read from that
release on, `before_0_5_23` up to the one before; `release` imports the one that is for the
installed SGLang.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from functools import cache
from pathlib import Path

PROVED = Path(__file__).with_name("proved.json")
"""By release: what was run on it, written by `python -m porting.prove` when all of it passed."""
_LIMITED = re.compile(r"\.(since|before)_(\d+(?:_\d+)*)$")
Release = tuple[int, ...]


def installed_sglang() -> str | None:
    """The installed SGLang version, or None."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def proved_sglang() -> tuple[str, ...]:
    """The releases that this package was proved on, the newest last."""
    return tuple(sorted(json.loads(PROVED.read_text(encoding="utf-8")), key=numbers))


def supported() -> bool:
    """Whether the installed SGLang is a release that this package was proved on.

    A build of one (0.5.23+cu130) is the same code; a development or post release is not.
    """
    installed = installed_sglang()
    return installed is not None and installed.partition("+")[0] in proved_sglang()


def proved() -> str:
    """The releases that were proved, to be read: "0.5.22 and 0.5.23"."""
    *others, newest = proved_sglang()
    return f"{', '.join(others)} and {newest}" if others else newest


def install_proved() -> str:
    """The command that installs the newest of them."""
    return f"pip install sglang=={proved_sglang()[-1]}"


def numbers(version: str) -> Release:
    """The numbers that a version begins with: (0, 5, 23) of 0.5.23.post1."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(each) for each in found[0].split(".")) if found else ()


def at_least(release: str) -> bool:
    """Whether the installed SGLang is this release or a later one; True if there is none."""
    installed = installed_sglang()
    return installed is None or numbers(installed) >= numbers(release)


def for_installed(module: str) -> bool:
    """Whether a module of ours, by its name, is for the installed SGLang."""
    found = _LIMITED.search(module)
    return found is None or at_least(found[2].replace("_", ".")) == (found[1] == "since")
