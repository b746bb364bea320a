"""Tuning files (TOML): parameters that are no flags, for servers and for simulations alike.

    [policy]
    switch_factor = 3

    [engine]
    longest_rest = 60

`tokenflow tune` writes one; `--tokenflow-tuning` of a server and `tokenflow simulate --tuning` read
it. docs/flags.md has the tables of what may stand in it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import Field
from typing import Any

from tokenflow_sgl.errors import shown
from tokenflow_sgl.policy.config import ConfigError, allowed_instead

MOST_BYTES = 65_536
"""Of a file; one that says everything has less than a thirtieth of that."""
_KINDS = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}


def read_tuning(
    path: str,
    tables: Mapping[str, Mapping[str, Field[Any]]],
    elsewhere: Mapping[str, str],
) -> dict[str, dict[str, Any]]:
    """The values of a file, by table and name, in the types of the settings.

    Args:
        path: Of the file.
        tables: What may stand in it: of each table its settings, as `setting` makes them.
        elsewhere: Names that a reader may look for here, with where else they are said.

    Raises:
        ConfigError: It cannot be read, or something in it cannot be used; the message names the
            file, the field, its value and what is allowed.
    """
    try:
        return _values(_parsed(path), tables, elsewhere)
    except ConfigError as error:
        raise ConfigError(f"tuning file {path}: {error}") from None


def write_tuning(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """The text of a file with these values: numbers, words without quotes, true and false."""
    parts = []
    for table, values in tables.items():
        lines = [f"{name} = {_written(value)}\n" for name, value in values.items()]
        parts.append("".join([f"[{table}]\n", *lines]))
    return "\n".join(parts)


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _parsed(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            read = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(getattr(error, "strerror", None) or str(error)) from None
    if len(read) > MOST_BYTES:
        raise ConfigError(f"it is longer than {MOST_BYTES:,} bytes, the most that is allowed")
    try:
        return tomllib.loads(read.decode())
    except UnicodeDecodeError:
        raise ConfigError("it is no text in UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        # One sentence: the parser quotes what it met, which may be a line break.
        raise ConfigError(f"it is no TOML: {' '.join(str(error).split())}") from None


def _values(
    parsed: Mapping[str, Any],
    tables: Mapping[str, Mapping[str, Field[Any]]],
    elsewhere: Mapping[str, str],
) -> dict[str, dict[str, Any]]:
    for table, values in parsed.items():
        if table not in tables:
            raise ConfigError(_unknown(table, values, tables, elsewhere))
        if not isinstance(values, dict):
            raise ConfigError(f"{table} is {shown(values)}; allowed is a table, [{table}]")
        for name in values:
            if name not in tables[table]:
                raise ConfigError(
                    _misplaced(name, tables, elsewhere)
                    or f"[{table}] has no {shown(name)}; allowed are {', '.join(tables[table])}"
                )
    return {
        table: {
            name: _checked(table, item, parsed[table][name])
            for name, item in known.items()
            if name in parsed.get(table, {})
        }
        for table, known in tables.items()
    }


def _unknown(
    table: str,
    values: Any,
    tables: Mapping[str, Mapping[str, Field[Any]]],
    elsewhere: Mapping[str, str],
) -> str:
    """The sentence about something at the top of a file that is none of its tables."""
    misplaced = None if isinstance(values, dict) else _misplaced(table, tables, elsewhere)
    names = " and ".join(f"[{name}]" for name in tables)
    return misplaced or f"it has {shown(table)}, which is no table of it; allowed are {names}"


def _misplaced(
    name: str, tables: Mapping[str, Mapping[str, Field[Any]]], elsewhere: Mapping[str, str]
) -> str | None:
    """The sentence about a setting that stands where it does not belong; None: it is none."""
    if name in elsewhere:
        return f"{name} does not belong here: {elsewhere[name]}"
    place = next((table for table, known in tables.items() if name in known), None)
    return None if place is None else f"{name} stands in the wrong place; allowed is in [{place}]"


def _checked(table: str, item: Field[Any], value: Any) -> Any:
    """A value in the type of its setting.

    Raises:
        ConfigError: It has another type, or is out of the setting's range.
    """
    kind: Any = type(item.default)
    fits = isinstance(value, int | float) if kind is float else isinstance(value, kind)
    if not fits or isinstance(value, bool) is not (kind is bool):
        allowed: str | None = _KINDS[kind]
    else:
        allowed = allowed_instead(item, value)
    if allowed is not None:
        raise ConfigError(f"[{table}] {item.name} is {shown(value)}; allowed is {allowed}")
    return kind(value)
