"""What a callable takes, and how that differs between two releases."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from porting.meaning import Function, text_of


@dataclass(frozen=True)
class Parameter:
    """One parameter.

    Attributes:
        name: Its name, with the stars of *args and **kwargs.
        by: How it is given: "place", "both" or "name".
        default: The text of its default; None: it has to be given.
    """

    name: str
    by: str
    default: str | None


def parameters(function: Function) -> list[Parameter]:
    """What a function takes, in order."""
    given = function.args
    placed = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(placed) - len(given.defaults)) + [*given.defaults]
    found = [
        Parameter(each.arg, "place" if each in given.posonlyargs else "both", _text(default))
        for each, default in zip(placed, defaults, strict=True)
    ]
    if given.vararg is not None:
        found.append(Parameter(f"*{given.vararg.arg}", "place", ""))
    for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        found.append(Parameter(each.arg, "name", _text(default)))
    if given.kwarg is not None:
        found.append(Parameter(f"**{given.kwarg.arg}", "name", ""))
    return found


def fields(made: ast.ClassDef) -> list[Parameter]:
    """What a class without a constructor of its own takes: its fields."""
    return [
        Parameter(node.target.id, "both", _text(node.value))
        for node in made.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]


def _text(default: ast.expr | None) -> str | None:
    return None if default is None else text_of(default)


@dataclass(frozen=True)
class Difference:
    """One difference between two signatures.

    Attributes:
        told: A sentence on it.
        names: Parameters that it is about; a caller that gives none of them is not concerned.
        required: Whether every caller is concerned.
    """

    told: str
    names: frozenset[str]
    required: bool = False


def differences(base: list[Parameter], new: list[Parameter]) -> Iterator[Difference]:
    """What changed of the parameters."""
    before, after = {each.name: each for each in base}, {each.name: each for each in new}
    for name in (each.name for each in base if each.name not in after):
        yield Difference(f"no longer takes {name}", frozenset({name}))
    for each in new:
        if each.name not in before:
            optional = "" if each.default is None else " (optional)"
            told = f"takes a new {each.name}{optional}"
            yield Difference(told, frozenset({each.name}), each.default is None)
    for name in (each.name for each in base if each.name in after):
        old, now = before[name], after[name]
        if old.by != now.by:
            yield Difference(f"takes {name} by {now.by}, not by {old.by}", frozenset({name}))
        if old.default != now.default:
            told = f"default of {name}: {_told(old.default)}, now {_told(now.default)}"
            yield Difference(told, frozenset({name}), now.default is None)
    kept = [[each.name for each in side if each.by != "name"] for side in (base, new)]
    common = [[name for name in side if name in before and name in after] for side in kept]
    if common[0] != common[1] and set(common[0]) == set(common[1]):
        yield Difference(f"order of parameters: {', '.join(common[1])}", frozenset(common[0]))


def _told(default: str | None) -> str:
    return "none" if default is None else default


def way_of_call(function: Function) -> str:
    """What else a caller has to know: whether it is awaited, and what it is bound to."""
    bound = {ast.unparse(each) for each in function.decorator_list}
    kinds = sorted(bound & {"staticmethod", "classmethod"})
    waits = ["async"] if isinstance(function, ast.AsyncFunctionDef) else []
    return " ".join([*waits, *kinds]) or "a plain function"
