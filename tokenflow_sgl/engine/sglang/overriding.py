"""Holds the methods by which our classes differ from SGLang's against what SGLang calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any, TypeVar

from tokenflow_sgl.engine.sglang.seam_check import SeamError, of_version

_PACKAGE = __name__.partition(".")[0]
_WILD = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
Class = TypeVar("Class", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])


def checked(made: Class) -> Class:
    """Decorate a class of ours that derives from one of SGLang's.

    Raises:
        SeamError: A method takes less than the one that it stands for, or asks for more.
    """
    check_overrides(made)
    return made


def check_overrides(made: type) -> None:
    """The same for a class and all of ours that it derives from."""
    ours = [each for each in made.__mro__ if each.__module__.partition(".")[0] == _PACKAGE]
    theirs = [each for each in made.__mro__ if each not in ours and each is not object]
    for each in ours:
        for name, function in vars(each).items():
            stood_for = next((vars(base)[name] for base in theirs if name in vars(base)), None)
            trouble = _difference(_function(function), _function(stood_for))
            if trouble is not None:
                raise SeamError(
                    f"{of_version()}: {each.__qualname__}.{name} {trouble}, which SGLang's own "
                    f"{theirs[0].__qualname__}.{name} does not"
                )


def _function(found: Any) -> Any:
    """What is called, of a method in a class's namespace; None: it is no method."""
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


def overrides(why: str) -> Callable[[Function], Function]:
    """Declare that a method stands for SGLang's; `why`: what breaks without it, for the ledger."""

    def declare(function: Function) -> Function:
        return function

    return declare
