"""docs/architecture.md on names: a module is found by its name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[3]
MODULES = [
    path
    for folder in ("tokenflow_sgl", "emulator/src")
    for path in (ROOT / folder).rglob("*.py")
    if path.name != "__init__.py"
]
NAMED_WITH_THEIR_PACKAGE = {"actuator.py", "config.py", "run.py"}


def test_a_module_has_a_name_of_its_own() -> None:
    names = Counter(path.name for path in MODULES)
    assert {name for name, count in names.items() if count > 1} == NAMED_WITH_THEIR_PACKAGE
