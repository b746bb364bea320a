"""The table of bindings binds what a search of all modules would bind."""

from __future__ import annotations

import sys
import types

import pytest
from known_bindings import KnownBindings


def test_all_that_imported_it_get_what_replaces_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def function() -> None: ...

    def once() -> None: ...

    def twice() -> None: ...

    source, before, changed, later = (types.ModuleType(f"made_{number}") for number in range(4))
    for module in (source, before, changed, later):
        module.function = function
    before.alias = function
    for module in (source, before, changed):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    bind = KnownBindings()
    monkeypatch.setitem(sys.modules, later.__name__, later)
    changed.function = len
    assert bind(function, once, source) == 3
    assert before.function is before.alias is later.function is once
    assert source.function is function  # SGLang's registry binds that itself
    assert changed.function is len
    # What is hooked again is found by what it was replaced with.
    assert bind(once, twice, source) == 3
    assert before.function is before.alias is later.function is twice
