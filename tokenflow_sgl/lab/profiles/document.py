"""Profiles as JSON files: what is written, and the strict reading of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from tokenflow_sgl.errors import InputError

FORMAT = "tokenflow-device-profile"
VERSION = 1


class ProfileError(InputError):
    """A profile, a name or a measurement is not usable; the message says which and what is."""


class Fields:
    """A JSON object whose fields are checked when they are read.

    Args:
        value: The decoded JSON.
        where: What the object is, for messages.
        names: The fields that it must have, all of them and no other.

    Raises:
        ProfileError: Not an object, a field is missing, or one is unknown.
    """

    def __init__(self, value: object, where: str, names: Set[str]) -> None:
        if not isinstance(value, dict):
            raise ProfileError(f"{where} is {_kind(value)}; expected is an object.")
        missing, unknown = sorted(names - value.keys()), sorted(value.keys() - names)
        if missing:
            raise ProfileError(f"{where} lacks {', '.join(missing)}.")
        if unknown:
            raise ProfileError(
                f"{where} has unknown fields {', '.join(unknown)}; known are "
                f"{', '.join(sorted(names))}."
            )
        self._value: dict[str, Any] = value
        self._where = where

    def text(self, name: str) -> str:
        """A field of the document that has to be a string."""
        value = self._value[name]
        if not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return value

    def integer(self, name: str) -> int:
        """A field of the document that has to be a whole number."""
        value = self._value[name]
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(name, value, "a whole number")
        return value

    def number(self, name: str) -> float:
        """A field of the document that has to be a finite number."""
        return self._number(name, self._value[name])

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of finite numbers."""
        return self._list(name, self._value[name])

    def table(self, name: str) -> tuple[tuple[float, ...], ...]:
        """A list of lists of finite numbers."""
        value = self._value[name]
        if not isinstance(value, list):
            raise self._wrong(name, value, "a list of lists of numbers")
        return tuple(self._list(f"{name}[{i}]", line) for i, line in enumerate(value))

    def inner(self, name: str, names: Set[str]) -> Fields:
        """An object inside this one."""
        return Fields(self._value[name], name, names)

    def _list(self, name: str, value: object) -> tuple[float, ...]:
        if not isinstance(value, list):
            raise self._wrong(name, value, "a list of numbers")
        return tuple(self._number(f"{name}[{i}]", item) for i, item in enumerate(value))

    def _number(self, name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, value, "a number")
        try:
            number = float(value)
        except OverflowError:  # a whole number of more than 308 digits
            number = math.inf
        if not math.isfinite(number):
            raise self._wrong(name, value, "a finite number")
        return number

    def _wrong(self, name: str, value: object, expected: str) -> ProfileError:
        return ProfileError(f"{self._where}: {name} is {_kind(value)}; expected is {expected}.")


def read(path: Path) -> dict[str, Any]:
    """The content of a profile file without format and version, which are checked here.

    Raises:
        ProfileError: The file cannot be read, is not JSON, or not a profile of this version.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_object)
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(value, dict) or value.pop("format", None) != FORMAT:
        raise ProfileError(f"{path} is not a profile: it has no field format with {FORMAT!r}.")
    version = value.pop("version", None)
    if version != VERSION:
        raise ProfileError(f"{path} has version {version!r}; this release reads version {VERSION}.")
    return value


def write(path: Path, content: Mapping[str, object]) -> None:
    """Write a profile's content with format and version in front; floats survive exactly."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(value, allow_nan=False)}"
        for name, value in {"format": FORMAT, "version": VERSION, **content}.items()
    ]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {repeated!r} is there twice")
    return value


def _kind(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
