from __future__ import annotations

import ast
import sys
from pathlib import Path

import tokenflow_sgl.lab.traces as traces
from tokenflow_sgl.lab.traces import loaders

FOLDER = Path(traces.__file__).parent


def test_facades_export_what_they_say() -> None:
    for package in (traces, loaders):
        assert package.__all__ == sorted(package.__all__, key=lambda n: (not n.isupper(), n))
        assert all(hasattr(package, name) for name in package.__all__)


def test_imports_only_numpy_the_standard_library_and_itself() -> None:
    allowed = {"numpy", "tokenflow_sgl"} | set(sys.stdlib_module_names)
    for path in FOLDER.rglob("*.py"):
        extra = {
            "trace_plot.py": {"matplotlib"},
            "show.py": {"rich"},
            "text_lengths.py": {"tokenizers"},  # when a tokenizer is named
        }.get(path.name, set())
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] in allowed | extra, (path, name)
                if name.startswith("tokenflow_sgl"):
                    light = ("tokenflow_sgl.choices", "tokenflow_sgl.errors")
                    assert name.startswith(("tokenflow_sgl.lab.traces", *light)), (path, name)
