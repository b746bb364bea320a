"""The modules of benchmarks/gpu/serve, which are scripts beside each other, not a package."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
FOLDERS = [ROOT / "benchmarks" / "gpu" / "serve", ROOT / "benchmarks" / "gpu"]


@contextmanager
def modules(*names: str) -> Iterator[tuple[ModuleType, ...]]:
    """Those of these names, importable for as long as the block lasts."""
    before, known = [*sys.path], set(sys.modules)
    sys.path[:0] = map(str, FOLDERS)
    try:
        yield tuple(importlib.import_module(name) for name in names)
    finally:
        sys.path[:] = before
        for name in set(sys.modules) - known:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if any(Path(file).is_relative_to(folder) for folder in FOLDERS):
                del sys.modules[name]
