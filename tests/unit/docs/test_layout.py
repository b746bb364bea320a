"""docs/architecture.md on names and sizes: classes are found by name, and functions are short."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = {path: ast.parse(path.read_text()) for path in (ROOT / "tokenflow_sgl").rglob("*.py")}
LONGEST, MOST = 70, 6
"""Lines and parameters of a function."""
LONGER, MORE = 17, 36
"""How many functions have more. These numbers only ever go down."""


def test_a_class_has_a_name_of_its_own() -> None:
    names = Counter(
        node.name
        for tree in SOURCES.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def functions() -> list[tuple[int, int]]:
    """Lines and parameters of each."""
    found = []
    for tree in SOURCES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                own = [each for each in given if each.arg not in ("self", "cls")]
                found.append(((node.end_lineno or 0) - node.lineno + 1, len(own)))
    return found


@pytest.mark.parametrize(("place", "limit", "known"), [(0, LONGEST, LONGER), (1, MOST, MORE)])
def test_functions_get_no_longer(place, limit, known) -> None:
    assert sum(each[place] > limit for each in functions()) <= known
