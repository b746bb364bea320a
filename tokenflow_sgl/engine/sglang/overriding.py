"""Declares the methods by which our classes differ from SGLang's, and holds them against those."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from inspect import Parameter
from typing import Any, TypeVar

from tokenflow_sgl.engine.sglang.seam_check import SeamError, of_version

_PACKAGE = __name__.partition(".")[0]
_WILD = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_WHY = "__tokenflow_overrides__"
Class = TypeVar("Class", bound=type)
Method = TypeVar("Method", bound=Callable[..., Any])


def overrides(why: str) -> Callable[[Method], Method]:
    """Decorate a method that stands for one of SGLang's; a row of the ledger.

    Args:
        why: What breaks without it; written as it is, because the ledger is read from the source.
    """

    def declared(method: Method) -> Method:
        setattr(method, _WHY, why)
        return method

    return declared


def checked(made: Class) -> Class:
    """Decorate a class of ours that derives from one of SGLang's.

    Raises:
        SeamError: A method takes less than the one that it stands for, or asks for more; or it is
            declared to stand for one that SGLang does not have.
    """
    check_overrides(made)
    return made


def check_overrides(made: type) -> None:
    """Check the overrides of a class and of all of ours that it derives from."""
    for each, name, ours, theirs, base in _pairs(made):
        if theirs is None:
            if declared(ours) is not None and base.__module__.partition(".")[0] == "sglang":
                raise SeamError(
                    f"{of_version()}: {each.__qualname__}.{name} stands for "
                    f"{base.__qualname__}.{name}, which is missing"
                )
            continue
        trouble = _difference(_function(ours), _function(theirs))
        if trouble is not None:
            raise SeamError(
                f"{of_version()}: {each.__qualname__}.{name} {trouble}, which SGLang's own "
                f"{base.__qualname__}.{name} does not"
            )


def undeclared(made: type) -> list[str]:
    """Methods of ours that stand for one of SGLang's without `overrides`, as "Class.method"."""
    return [
        f"{each.__qualname__}.{name}"
        for each, name, ours, theirs, _ in _pairs(made)
        if _function(ours) is not None and theirs is not None and declared(ours) is None
    ]


def declared(found: Any) -> str | None:
    """What `overrides` says of a method in a class's namespace; None: nothing."""
    why: str | None = getattr(_function(found), _WHY, None)
    return why


def _pairs(made: type) -> Iterator[tuple[type, str, Any, Any, type]]:
    """(class, name, ours, theirs or None, SGLang's class) of all in the classes of ours in `made`.

    SGLang's class is the one that has it, or the first that ours derive from.
    """
    ours = [each for each in made.__mro__ if each.__module__.partition(".")[0] == _PACKAGE]
    theirs = [each for each in made.__mro__ if each not in ours and each is not object]
    for each in ours:
        for name, found in vars(each).items():
            base = next((base for base in theirs if name in vars(base)), None)
            stood_for = vars(base)[name] if base is not None else None
            for first in theirs[:1]:
                yield each, name, found, stood_for, base or first


def _function(found: Any) -> Any:
    """What is called, of a method in a class's namespace; None: it is no method."""
    if isinstance(found, property):
        found = found.fget
    if isinstance(found, (classmethod, staticmethod)):
        found = found.__func__
    return inspect.unwrap(found) if inspect.isfunction(found) else None


def _difference(ours: Any, theirs: Any) -> str | None:
    """In which way `ours` cannot be called as `theirs` is."""
    if ours is None or theirs is None or ours is theirs:
        return None
    wanted = inspect.signature(theirs).parameters
    taken = inspect.signature(ours).parameters
    kinds = {each.kind for each in taken.values()}
    places = [each for each in wanted.values() if each.kind not in _WILD]
    for place, each in enumerate(places):
        if each.name in taken or Parameter.VAR_KEYWORD in kinds:
            continue
        # One that is given by its place only may have another name here.
        named = [own for own in taken.values() if own.kind not in _WILD]
        same_place = place < len(named) and named[place].name not in wanted
        if not same_place and not (
            Parameter.VAR_POSITIONAL in kinds and each.kind is not Parameter.KEYWORD_ONLY
        ):
            return f"takes no {each.name}"
    takes_all = any(each.kind in _WILD for each in wanted.values())
    for own in taken.values():
        if (
            takes_all
            or own.kind in _WILD
            or own.default is not Parameter.empty
            or own.name in wanted
        ):
            continue
        place = [*taken].index(own.name)
        if place >= len(places) or places[place].name in taken:
            return f"asks for {own.name}"
    return None
