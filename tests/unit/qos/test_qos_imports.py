from __future__ import annotations

import ast
import sys
from pathlib import Path

import tokenflow_sgl.qos as qos

FLOOR = ("tokenflow_sgl.qos", "tokenflow_sgl.errors")


def test_facade_exports_what_it_says() -> None:
    assert qos.__all__ == sorted(qos.__all__, key=lambda name: (not name.isupper(), name))
    assert all(hasattr(qos, name) for name in qos.__all__)


def test_imports_only_numpy_and_the_standard_library() -> None:
    allowed = {"numpy", "tokenflow_sgl"} | set(sys.stdlib_module_names)
    for path in Path(qos.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] in allowed, (path, name)
                if name.startswith("tokenflow_sgl"):
                    assert name.startswith(FLOOR), (path, name)
