"""Holds the ledger of seams against the installed SGLang.

The start is refused if a seam is gone, with an error that names it; `tokenflow doctor` and a test
print and check the same rows.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
from collections.abc import Collection, Iterator
from functools import cache
from types import CodeType
from typing import Any

from tokenflow_sgl.engine.sglang import version
from tokenflow_sgl.engine.sglang.ledger import ledger
from tokenflow_sgl.engine.sglang.seam import UNPROVED_VARIABLE, Seam

logger = logging.getLogger(__name__)

_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class SeamError(RuntimeError):
    """SGLang has no longer what this package holds on to."""


def resolve(target: str) -> Any:
    """The object behind "module:attribute.path"; raises ImportError or AttributeError."""
    module, _, path = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def problem(seam: Seam) -> str | None:
    """What is wrong with a seam in the installed SGLang; None if it holds."""
    try:
        found = resolve(seam.target)
    except (ImportError, AttributeError) as error:
        if seam.kind == "use" and _has(seam.target):
            return None
        return f"{seam.target} is missing ({error})"
    if seam.parameters or seam.places:
        taken, placed = _takes(found)
        absent = [name for name in seam.parameters if name not in taken]
        if absent:
            return f"{seam.target} no longer takes {', '.join(absent)}"
        if placed < seam.places:
            return f"{seam.target} takes {placed} arguments by place, not {seam.places}"
    return None


def _takes(found: Any) -> tuple[Collection[str], int]:
    """Names of a callable's parameters, and how many arguments it takes by their places."""
    fields: tuple[str, ...] | None = getattr(found, "__struct_fields__", None)
    if fields is not None:
        # msgspec's signatures are made of types that SGLang imports for type checkers only.
        return fields, len(fields)
    taken = inspect.signature(inspect.unwrap(found)).parameters
    kinds = [each.kind for each in taken.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return taken, sys.maxsize
    return taken, sum(kind in _BY_PLACE for kind in kinds)


def _has(target: str) -> bool:
    """Whether objects of a class have an attribute that the class itself has not.

    What is assigned in a method is told from the names in the compiled methods, of whichever
    object: that takes no time at a start. `seam_source`, for the doctor and a test, is exact.
    """
    holder, _, name = target.rpartition(".")
    try:
        owner = resolve(holder)
    except (ImportError, AttributeError):
        return False
    return isinstance(owner, type) and (
        name in _attributes(owner) or any(name in vars(each) for each in owner.__mro__)
    )


@cache
def _attributes(owner: type) -> frozenset[str]:
    """Names of fields of a class, and all names in its methods."""
    found: set[str] = set()
    for each in owner.__mro__:
        found |= vars(each).get("__annotations__", {}).keys()
        for method in vars(each).values():
            if inspect.isfunction(method):
                found |= set(_names(inspect.unwrap(method).__code__))
    return frozenset(found)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


def of_version() -> str:
    """How a sentence begins that refuses a start for what SGLang is."""
    return f"tokenflow cannot start on SGLang {version.installed_sglang()}"


def check_seams() -> None:
    """Make sure that SGLang is a release that was proved, and that every seam holds.

    With `UNPROVED_VARIABLE` another release is no reason to refuse, a broken seam still is.

    Raises:
        SeamError: It is another one, or a seam does not hold; the message names it.
    """
    remedy = (
        f"It supports SGLang {version.proved()}; install that version "
        f"({version.install_proved()}) or start without --scheduler tokenflow"
    )
    if not version.supported():
        # With the same names a function may mean something else there, and answers be wrong.
        if os.environ.get(UNPROVED_VARIABLE) != "1":
            raise SeamError(f"{of_version()}, which it was not proved on. {remedy}")
        _warn_of(version.installed_sglang())
    for seam in ledger():
        trouble = problem(seam)
        if trouble is not None:
            raise SeamError(f"{of_version()}: {trouble}. {remedy}")


@cache
def _warn_of(release: str | None) -> None:
    """Once per process."""
    logger.warning(
        "tokenflow was not proved on SGLang %s: answers may be wrong, and streams be lost. It was "
        "told to start nevertheless (--tokenflow-unproved-sglang)",
        release,
    )
