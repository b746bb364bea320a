"""docs/architecture.md on names and sizes: a module is found by its name, and is short."""

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
MOST_LINES = 300


def test_a_module_has_a_name_of_its_own() -> None:
    names = Counter(path.name for path in MODULES)
    assert {name for name, count in names.items() if count > 1} == NAMED_WITH_THEIR_PACKAGE


def test_no_module_is_long() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in MODULES}
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}
