"""Who has imported what, looked up once for all servers that are forked.

For each hook SGLang looks through the variables of all modules, 7,700 of them, for those that had
imported what is hooked: 3 of the 8 seconds that a fork's start took on a slow machine. Here the
same variables are found in a table, made before the fork; only modules that were imported since are
looked through.
"""

from __future__ import annotations

import sys
import types
from typing import Any

Bindings = dict[int, list[tuple[Any, str]]]


class KnownBindings:
    """Stands for `_propagate_patch` of SGLang's hook registry."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._at: Bindings = {}
        self._look()

    def __call__(self, original: object, wrapped: object, source_module: object) -> int:
        """Bind `wrapped` wherever `original` was bound; how often."""
        self._look()
        # An object that has gone may have had the number: what is bound now decides.
        known = self._at.get(id(original), [])
        bound = [
            (module, name)
            for module, name in known
            if module is not source_module and vars(module).get(name) is original
        ]
        for module, name in bound:
            setattr(module, name, wrapped)
        self._at.setdefault(id(wrapped), []).extend(bound)
        return len(bound)

    def _look(self) -> None:
        for module in [*sys.modules.values()]:
            if not isinstance(module, types.ModuleType) or id(module) in self._seen:
                continue
            self._seen.add(id(module))
            for name, value in [*vars(module).items()]:
                if callable(value):
                    self._at.setdefault(id(value), []).append((module, name))
