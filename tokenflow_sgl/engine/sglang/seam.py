"""One hold on SGLang."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seam:
    """One hold on SGLang.

    target: module:attribute.path. kind: hook (through HookRegistry), override (method of
    a class that we subclass) or call. why: what breaks without it. parameters: names that
    the callable must still take.
    """

    target: str
    kind: str
    why: str
    parameters: tuple[str, ...] = ()
    since: str = "0.5.23"
