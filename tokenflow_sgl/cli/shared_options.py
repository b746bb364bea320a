"""Options that several commands share, as one parameter of each.

Typer makes an option of each parameter of a command. A parameter whose type is a dataclass stands
here for one option for each of its fields. A command that has another help text for a field, or
does not have it, takes a subclass that says so: a field with `init=False` is no option.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, get_type_hints


def shares_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer wants to see it: with one parameter for each option.

    Args:
        command: Its parameters without a default come first; those of a dataclass are keywords.
    """
    groups: dict[str, Any] = {}
    options: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        shared = parameter.annotation
        if not dataclasses.is_dataclass(shared):
            options.append(parameter.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD))
            continue
        groups[parameter.name] = shared
        types = get_type_hints(shared, include_extras=True)
        options += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=_default(field),
                annotation=types[field.name],
            )
            for field in _options(shared)
        ]

    @wraps(command)
    def with_options(**given: Any) -> None:
        for name, shared in groups.items():
            names = [field.name for field in _options(shared)]
            given[name] = shared(**{each: given.pop(each) for each in names})
        command(**given)

    # Typer looks at both.
    with_options.__dict__["__signature__"] = inspect.Signature(options)
    with_options.__annotations__ = {option.name: option.annotation for option in options}
    return with_options


def _default(field: dataclasses.Field[Any]) -> Any:
    required = field.default is dataclasses.MISSING
    return inspect.Parameter.empty if required else field.default


def _options(shared: Any) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(shared) if field.init]
