"""The settings in a spec: what stands after its question mark, key by key."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar
from urllib.parse import unquote_plus

from tokenflow_sgl.lab.traces.generators.arrivals import ARRIVALS, Arrivals
from tokenflow_sgl.lab.traces.parameters import build, parameter_names
from tokenflow_sgl.lab.traces.request import TraceError

E = TypeVar("E", bound=StrEnum)


class SpecSettings:
    """The key=value pairs of a spec; each key is taken once, what is left is unknown.

    Args:
        spec: The whole spec, for errors.
        text: Its part after the question mark.

    Raises:
        TraceError: A part is no pair or a key stands twice; from the methods also where a value is
            not of its kind.
    """

    def __init__(self, spec: str, text: str) -> None:
        self._spec = spec
        self._left: dict[str, str] = {}
        self._known: list[str] = []
        for part in filter(None, text.split("&")):
            key, equals, value = part.partition("=")
            if not equals or key in self._left:
                problem = "is given twice" if equals else "is not of the form key=value"
                raise TraceError(f"{spec}: {part!r} {problem}")
            self._left[key] = unquote_plus(value)

    def fail(self, problem: str) -> TraceError:
        """An error about the spec, with the spec in front."""
        return TraceError(f"{self._spec}: {problem}")

    def text(self, key: str) -> str | None:
        """The value of a key; None: it is not given."""
        self._known.append(key)
        return self._left.pop(key, None)

    def number(self, key: str) -> float | None:
        """The value of a key as a number; None: it is not given."""
        text = self.text(key)
        try:
            return None if text is None else float(text)
        except ValueError:
            raise self.fail(f"{key} is {text!r}; allowed is a number") from None

    def count(self, key: str) -> int | None:
        """The value of a key as a whole number; None: it is not given."""
        text = self.text(key)
        try:
            return None if text is None else int(text)
        except ValueError:
            raise self.fail(f"{key} is {text!r}; allowed is a whole number") from None

    def flag(self, key: str, default: bool) -> bool:
        """The value of a key as yes or no."""
        text = self.text(key)
        if text not in (None, "yes", "no"):
            raise self.fail(f"{key} is {text!r}; allowed is yes or no")
        return default if text is None else text == "yes"

    def choice(self, key: str, allowed: type[E], default: E | None = None) -> E:
        """The value of a key, one of a closed list; without a default it must be given."""
        text = self.text(key)
        if text is None and default is not None:
            return default
        if text not in list(allowed):
            given = "must be given" if text is None else f"is {text!r}"
            raise self.fail(f"{key} {given}; allowed are {', '.join(allowed)}")
        return allowed(text)

    def arrivals(self) -> Arrivals | None:
        """A generator of arrivals: `arrivals=NAME` and its parameters beside it."""
        name = self.text("arrivals")
        if name is None:
            return None
        keys = parameter_names(ARRIVALS[name]) if name in ARRIVALS else ()
        given = {key: text for key in keys if (text := self.text(key)) is not None}
        return build(f"{self._spec}: arrivals", ARRIVALS, name, given)

    def needed_arrivals(self, what: str) -> Arrivals:
        """`arrivals` for a file without times; `what` are its rows, for the error."""
        arrivals = self.arrivals()
        if arrivals is None:
            raise self.fail(
                f"the file has no times; arrivals must be given for its {what}, as in "
                f"arrivals=poisson&rate=2&seed=0; allowed are {', '.join(ARRIVALS)}"
            )
        return arrivals

    def finish(self) -> None:
        """Refuse keys that were never asked for."""
        if self._left:
            allowed = ", ".join(dict.fromkeys(self._known))
            raise self.fail(f"{', '.join(self._left)} is unknown here; allowed are {allowed}")
