"""How a launch is refused that `--scheduler tokenflow` cannot serve."""

from __future__ import annotations

from dataclasses import dataclass


class UnsupportedError(ValueError):
    """The server's options and `--scheduler tokenflow` exclude each other."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a launch is refused.

    Attributes:
        subject: The option, or the kind of model, that stands in the way; for counting.
        sentence: What the user is told.
    """

    subject: str
    sentence: str
