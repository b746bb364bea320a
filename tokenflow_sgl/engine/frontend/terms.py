"""How fast a reader reads: the request's own rate, a named class, or the default.

A client sends `custom_params: {"tokenflow_rate": 20}` (tokens per second) or
`{"tokenflow_class": "listening"}`. Keys that begin with `tokenflow_` are ours, so one that is
neither is a mistake that the client hears of. Everything else in `custom_params` is left alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenflow_sgl.qos.reader import HIGHEST_RATE, LOWEST_RATE

RATE_KEY = "tokenflow_rate"
CLASS_KEY = "tokenflow_class"
PREFIX = "tokenflow_"
KEYS = (RATE_KEY, CLASS_KEY)
NOT_STREAMED = "not-streamed"
"""Class of requests that do not stream: no reader follows them, and their rate is not asked for.
No class that an operator names can be called so: those are identifiers."""


class RateError(ValueError):
    """A request's rate cannot be used; the message is one sentence for the client."""


@dataclass(frozen=True, slots=True)
class RateClasses:
    """classes: tokens per second by name. default: of requests that state nothing."""

    classes: Mapping[str, float]
    default: float

    def __post_init__(self) -> None:
        for name, rate in self.classes.items():
            check_rate(rate, f"rate class {name}")

    def of(self, custom_params: Any) -> tuple[float, str]:
        """(rate, class name) that a request's `custom_params` ask for.

        The class is "custom" for a rate of its own and "default" where nothing is said.
        Raises `RateError` for a bad rate, an unknown class, both at once, or an unknown key.
        """
        if not isinstance(custom_params, Mapping):
            return self.default, "default"
        check_keys(custom_params)
        if RATE_KEY in custom_params:
            if CLASS_KEY in custom_params:
                raise RateError(f"{RATE_KEY} and {CLASS_KEY} exclude each other; give one of them.")
            return check_rate(custom_params[RATE_KEY]), "custom"
        if CLASS_KEY in custom_params:
            name = custom_params[CLASS_KEY]
            if not isinstance(name, str) or name not in self.classes:
                raise RateError(
                    f"{CLASS_KEY} is {shown(name)}; known classes are "
                    f"{', '.join(sorted(self.classes))}."
                )
            return self.classes[name], name
        return self.default, "default"


def check_rate(value: Any, name: str = RATE_KEY) -> float:
    """`value` as a rate in tokens per second; raises `RateError` if it is none."""
    # bool is an int to Python, but no client means a rate by it.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RateError(
            f"{name} is {shown(value)}; it must be a number of tokens per second between "
            f"{LOWEST_RATE:g} and {HIGHEST_RATE:g}."
        )
    # Compared before it is converted: an int may be too large for a float, and NaN fails.
    if not LOWEST_RATE <= value <= HIGHEST_RATE:
        raise RateError(
            f"{name} is {shown(value)}; it must be between {LOWEST_RATE:g} and "
            f"{HIGHEST_RATE:g} tokens per second."
        )
    return float(value)


def check_keys(custom_params: Mapping[Any, Any]) -> None:
    """Raise `RateError` for a key that looks like ours and is none, and name the nearest."""
    for key in custom_params:
        if isinstance(key, str) and _folded(key).startswith(PREFIX) and key not in KEYS:
            raise RateError(
                f"{shown(key)} in custom_params is unknown; the nearest key is {_nearest(key)}."
            )


def check_place(fields: Iterable[Any], where: str) -> None:
    """Raise `RateError` for a key of ours outside of custom_params, where nothing reads it.

    where: what the fields are, for the sentence.
    """
    for key in fields:
        if isinstance(key, str) and _folded(key).startswith(PREFIX):
            raise RateError(
                f"{shown(key)} stands in {where}, where it says nothing; give {_nearest(key)} in "
                "custom_params."
            )


def _folded(key: str) -> str:
    """As the key would be written with underscores and in small letters."""
    return key.lower().replace("-", "_")


def _nearest(key: str) -> str:
    """The key of ours that `key` is most like."""
    found = difflib.get_close_matches(_folded(key)[:60], KEYS, n=1, cutoff=0.0)
    return found[0]


def shown(value: Any) -> str:
    """A client's value, short enough for an error sentence."""
    if isinstance(value, int) and value.bit_length() > 200:
        return "a huge integer"  # which Python refuses to print beyond 4,300 digits
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
