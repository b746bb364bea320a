"""SGLang's records and parser without all that `import sglang` brings: for the doctor's processes.

`sglang/__init__.py` imports transformers and the front-end language, which take most of an
import's time; the parser of a launch needs neither. The package is complete as soon as something
asks it for a name of its own, or `whole` does.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_PACKAGE = "sglang"
_LAZY = "__getattr__"


def light() -> None:
    """Let SGLang's modules be imported one by one; nothing where the package is there already."""
    if _PACKAGE in sys.modules:
        return
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None:
        return  # whoever imports it says so
    package = importlib.util.module_from_spec(spec)

    def missing(name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        _complete(package)
        return getattr(package, name)

    setattr(package, _LAZY, missing)
    sys.modules[_PACKAGE] = package


def whole() -> None:
    """Do what `import sglang` does, if it was left out."""
    light()
    package = sys.modules.get(_PACKAGE)
    if package is not None and _LAZY in vars(package):
        _complete(package)


def _complete(package: ModuleType) -> None:
    delattr(package, _LAZY)
    assert package.__spec__ is not None and package.__spec__.loader is not None
    package.__spec__.loader.exec_module(package)


@contextmanager
def uncollected() -> Iterator[None]:
    """Without searches for garbage, which importing and parsing make many of in vain.

    What is there at the end stays: the process ends soon, and its last search would take a second.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
