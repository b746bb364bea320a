"""Declares what is used of SGLang's objects, as Protocols."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Class = TypeVar("Class", bound=type)


def of(*targets: str) -> Callable[[Class], Class]:
    """Decorate a Protocol: all its members are of these classes of SGLang's.

    Each member is a row of the ledger: a method with the parameters that it is given, an attribute
    with the string behind it as the reason. What is checked is in `seam_check`.

    Args:
        targets: As "module:Class"; written as they are, because the ledger is read from the source.
    """

    def unchanged(made: Class) -> Class:
        return made

    return unchanged
