"""Parameters of generators: declared once, checked at construction, read from text.

A generator is a frozen dataclass whose fields are `parameter`s. The command line and the spec
strings write it as `name:key=value,key=value`; `choose` builds it from that.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tokenflow_sgl.lab.traces.request import TraceError

T = TypeVar("T")

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def parameter(
    text: str,
    *,
    low: float,
    high: float = math.inf,
    above: bool = False,
    default: Any = MISSING,
) -> Any:
    """A field with its meaning and its range: `low` (itself excluded with `above`) to `high`."""
    return field(default=default, metadata={"help": text, "low": low, "high": high, "above": above})


def check(config: Any) -> None:
    """Check every `parameter` of a dataclass.

    Raises:
        TraceError: One is no number, not finite or out of its range; None passes where it is the
            default.
    """
    for item in fields(config):
        if "low" not in item.metadata:
            continue
        value = getattr(config, item.name)
        if value is None and item.default is None:
            continue
        low, high = item.metadata["low"], item.metadata["high"]
        # Compared first: an int may be too large for a float. NaN fails every comparison.
        good = isinstance(value, int | float) and low <= value <= high and value != math.inf
        if not good or (item.metadata["above"] and value == low):
            raise TraceError(
                f"{type(config).__name__}: {item.name} is {value!r}; "
                f"allowed is {_range(low, high, item.metadata['above'])}"
            )


def _range(low: float, high: float, above: bool) -> str:
    lower = f"a number above {low:g}" if above else f"a number of at least {low:g}"
    return lower if math.isinf(high) else f"{lower} and at most {high:g}"


MOST_REQUESTS = 10_000_000
"""Of a trace that is made: more than any server sees in a day, and they still fit in memory."""
MOST_SECONDS = 1e9
"""Length of a trace that is made: thirty years."""


def extent(requests: int | None, duration_s: float | None, per_s: float | None = None) -> None:
    """Check that exactly one of the two ends of a generated trace is given, and is sensible.

    Args:
        requests: How many there are; or
        duration_s: in which time they arrive, seconds, and
        per_s: how many per second, on average.

    Raises:
        TraceError: None or both are given, or the one is out of range.
    """
    if (requests is None) == (duration_s is None):
        raise TraceError(
            f"exactly one of requests and duration must be given; "
            f"got requests={requests!r}, duration={duration_s!r}"
        )
    if requests is not None and not 1 <= requests <= MOST_REQUESTS:
        raise TraceError(
            f"requests is {requests!r}; allowed is a whole number of at least 1 and at most "
            f"{MOST_REQUESTS}"
        )
    if duration_s is not None and not 0 < duration_s <= MOST_SECONDS:
        raise TraceError(
            f"duration is {duration_s!r}; allowed is a number of seconds above 0 and at most "
            f"{MOST_SECONDS:g}"
        )
    if duration_s is not None and per_s is not None and duration_s * per_s > MOST_REQUESTS:
        raise TraceError(
            f"duration is {duration_s!r}, in which about {duration_s * per_s:.3g} requests arrive; "
            f"allowed are {MOST_REQUESTS}"
        )


def choose(what: str, choices: Mapping[str, type[T]], text: str) -> T:
    """Build one of `choices` from `name` or `name:key=value,key=value`.

    Args:
        what: What is chosen, for errors, as in "arrivals".
        choices: Dataclasses by name.
        text: The choice.

    Raises:
        TraceError: Unknown name or key, a value that is no number or out of range, a missing key.
    """
    name, _, rest = text.partition(":")
    settings: dict[str, str] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise TraceError(f"{what} {text!r}: {part!r} is not of the form key=value")
        settings[key.strip()] = value.strip()
    return build(what, choices, name.strip(), settings)


def build(what: str, choices: Mapping[str, type[T]], name: str, settings: Mapping[str, str]) -> T:
    """Build `choices[name]` from the texts of its parameters; see `choose`."""
    if name not in choices:
        raise TraceError(f"{what} {name!r} is unknown; allowed are {', '.join(choices)}")
    kind = choices[name]
    hints = typing.get_type_hints(kind)
    known = {item.name: item for item in fields(kind) if item.init}  # type: ignore[arg-type]
    for key in settings:
        if key not in known:
            allowed = ", ".join(known) or "none"
            raise TraceError(f"{what} {name}: {key!r} is unknown; allowed are {allowed}")
    missing = [
        key for key, item in known.items() if item.default is MISSING and key not in settings
    ]
    if missing:
        raise TraceError(f"{what} {name}: {', '.join(missing)} must be given")
    return kind(
        **{key: _parse(f"{what} {name}: {key}", hints[key], text) for key, text in settings.items()}
    )


def spell(choices: Mapping[str, type[T]], config: T) -> str:
    """The text that `choose` makes an equal config of; parameters at their defaults are left out.

    A config whose type is not in `choices` is shown as its Python representation.
    """
    name = next((name for name, kind in choices.items() if type(config) is kind), None)
    if name is None:
        return repr(config)
    given = [
        f"{item.name}={getattr(config, item.name)!r}"
        for item in fields(config)  # type: ignore[arg-type]
        if getattr(config, item.name) != item.default
    ]
    return name + (":" + ",".join(given) if given else "")


def parameter_names(kind: type[Any]) -> tuple[str, ...]:
    """Names of the parameters of a generator, in order."""
    return tuple(item.name for item in fields(kind) if item.init)


def _parse(where: str, hint: Any, text: str) -> Any:
    """`text` as the number that the type hint asks for: int, float, or either with None."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    number: type[int] | type[float] = int if int in kinds else float
    try:
        return number(text)
    except ValueError:
        wanted = "a whole number" if number is int else "a number"
        raise TraceError(f"{where} is {text!r}; allowed is {wanted}") from None


def stream(seed: int, purpose: str) -> np.random.Generator:
    """Random numbers for one purpose: equal seeds never correlate two purposes.

    Raises:
        TraceError: The seed is negative.
    """
    if seed < 0:
        raise TraceError(f"seed is {seed}; allowed is a whole number of at least 0")
    return np.random.default_rng([seed, *purpose.encode()])
