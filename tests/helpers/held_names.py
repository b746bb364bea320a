"""Which names of SGLang's objects the engine touches, and how many parameters could be anything.

Read from the source, so that what is held without a row of the ledger is found. Objects with a
Protocol are mypy's; here are those without: a name that is neither ours nor of a library that the
file imports is SGLang's, and so is whatever is asked of a parameter that is `Any`.

    python tests/helpers/held_names.py
"""

from __future__ import annotations

import ast
import builtins
import importlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType, GeneratorType

import numpy as np
import torch

from tokenflow_sgl.engine.sglang.ledger import sources
from tokenflow_sgl.engine.sglang.seam import Seam

PACKAGE = "tokenflow_sgl"
KNOWING = f"{PACKAGE}.engine.sglang."
"""The modules that declare: what they touch are SGLang's classes, and Python's."""
ALWAYS = (
    *(FunctionType, GeneratorType, io.TextIOWrapper, io.BufferedRandom, os.stat_result),
    *(torch.Tensor, torch.cuda.Stream, torch.cuda.Event),
    *(np.ndarray, np.random.Generator),
)
"""Types of objects that a file may have without importing them."""
ELSEWHERE = {
    "baseFilename": "logging.FileHandler, of its objects",
    "dest": "argparse.Action, of its objects",
    "mutex": "queue.Queue, of its objects",
    "_buckets": "prometheus_client.Histogram, of its objects",
    "_sum": "prometheus_client.Histogram, of its objects",
    "detail": "Starlette's HTTPException",
    "headers": "Starlette's Request",
    "json": "Starlette's Request",
    "status_code": "Starlette's HTTPException",
    "current_stream": "torch.cuda, or the module of another device",
    "set_device": "torch.cuda, or the module of another device",
    "srcAccessOrder": "NVIDIA's binding of the CUDA runtime",
    "cudaMemcpyAttributes": "NVIDIA's binding of the CUDA runtime",
    "cudaMemcpyBatchAsync": "NVIDIA's binding of the CUDA runtime",
    "cudaMemcpySrcAccessOrder": "NVIDIA's binding of the CUDA runtime",
    "cudaMemcpySrcAccessOrderStream": "NVIDIA's binding of the CUDA runtime",
    "cudaHostRegister": "NVIDIA's CUDA runtime, as torch has it",
    "graph": "the part of get_exec() that `GraphSettings` describes",
    "cudaSuccess": "NVIDIA's binding of the CUDA runtime",
    "cudaError_t": "NVIDIA's binding of the CUDA runtime",
    "batch_get_layers": "a storage of the user's, which may have it",
    "set_internal_state_communicator": "made by TokenizerControlMixin.init_communicators",
}
"""Names that are no row, and whose they are."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Touch:
    """An attribute that is asked for.

    Attributes:
        name: Of the attribute.
        where: File and line.
        foreign: It is asked of a parameter that could be anything.
    """

    name: str
    where: str
    foreign: bool


def without_row(
    modules: Mapping[str, str], seams: Iterable[Seam], ours: frozenset[str]
) -> list[Touch]:
    """What these modules touch that is neither ours, nor a library's, nor in the ledger.

    Args:
        modules: By name: their text.
        seams: The ledger.
        ours: Names that our package gives its own objects.
    """
    rows = {part for seam in seams for part in seam.target.partition(":")[2].split(".")}
    rows |= ELSEWHERE.keys()
    found = []
    for name, text in modules.items():
        if name.startswith(KNOWING):
            continue
        tree = ast.parse(text)
        known = rows | library(tree)
        for touch in touches(name, tree):
            if touch.name not in known and (touch.foreign or touch.name not in ours):
                found.append(touch)
    return found


def touches(module: str, tree: ast.Module) -> Iterator[Touch]:
    """All attributes that a module asks for or assigns."""
    foreign = {
        id(node)
        for function in functions(tree)
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in _anything(function)
    }
    modules = _library_modules(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _root(node) not in modules:
            where = f"{module.replace('.', '/')}.py:{node.lineno}"
            yield Touch(node.attr, where, id(node) in foreign)


def _root(node: ast.expr) -> str:
    """The name that a chain of attributes begins with, such as torch of torch.cuda.Stream."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _library_modules(tree: ast.Module) -> set[str]:
    return {
        (each.asname or each.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for each in node.names
    }


def functions(tree: ast.Module) -> list[Function]:
    """All functions and methods."""
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def parameters(function: Function) -> list[ast.arg]:
    """Its parameters, but *args and **kwargs."""
    given = function.args
    return [*given.posonlyargs, *given.args, *given.kwonlyargs]


def _anything(function: Function) -> set[str]:
    return {
        each.arg
        for each in parameters(function)
        if isinstance(each.annotation, ast.Name) and each.annotation.id == "Any"
    }


def library(tree: ast.Module) -> set[str]:
    """Names of attributes of Python's own types and of what a module imports, but SGLang's."""
    found = {*_of_module(builtins.__name__), *_of_types(ALWAYS)}
    for node in ast.walk(tree):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module]
        for name in names:
            if name.partition(".")[0] not in ("sglang", PACKAGE, "__future__"):
                found |= _of_module(name)
    return found


@cache
def _of_module(name: str) -> frozenset[str]:
    module = importlib.import_module(name)
    values = [value for value in vars(module).values() if isinstance(value, type)]
    return frozenset({*vars(module), *_of_types(tuple(values))})


@cache
def _of_types(values: tuple[type, ...]) -> frozenset[str]:
    return frozenset(name for each in values for name in dir(each))


@cache
def our_names() -> frozenset[str]:
    """Names that our package gives its own classes, methods, fields and attributes."""
    found: set[str] = set()
    root = Path(importlib.import_module(PACKAGE).__path__[0])
    for path in root.rglob("*.py"):
        if "sglang" not in path.relative_to(root).parts:
            found |= set(_given(ast.parse(path.read_text(encoding="utf-8"))))
    return frozenset(found)


def _given(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, Function | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for each in ast.walk(target):
                    if isinstance(each, ast.Name):
                        yield each.id
                    elif isinstance(each, ast.Attribute) and _root(each) == "self":
                        yield each.attr


def any_parameters() -> tuple[int, int]:
    """Parameters of the engine's functions that are `Any`, and all of them but self and cls."""
    every = [
        each
        for text in sources().values()
        for function in functions(ast.parse(text))
        for each in parameters(function)
        if each.arg not in ("self", "cls")
    ]
    anything = [
        each
        for each in every
        if isinstance(each.annotation, ast.Name) and each.annotation.id == "Any"
    ]
    return len(anything), len(every)


if __name__ == "__main__":
    from tokenflow_sgl.engine.sglang.ledger import ledger

    anything, every = any_parameters()
    print(f"{anything} of {every} parameters in engine/ are Any")
    print(f"{len(ledger())} rows in the ledger")
    for touch in without_row(sources(), ledger(), our_names()):
        print(f"{touch.where}: {touch.name}")
