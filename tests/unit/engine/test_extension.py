"""What can be beside a scheduler: asked together, and imported only where an option asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tokenflow_sgl.engine import features
from tokenflow_sgl.engine.config import ATTRIBUTE, RESTORE_ATTRIBUTE, TokenFlowConfig
from tokenflow_sgl.engine.extension import Extension, Extensions
from tokenflow_sgl.engine.features import FEATURES, features_on
from tokenflow_sgl.engine.layerwise_settings import LAYERWISE_ATTRIBUTE, LayerwiseSettings


class Idle(Extension):
    """Does nothing at any moment."""


class Holds(Extension):
    """Has something under way, in memory that it was lent.

    Attributes:
        checked: The requests of each check of SGLang's memory.
    """

    idle = False
    lent, lent_tokens = ("cells",), 7

    def __init__(self) -> None:
        self.checked: list[Any] = []

    def has_its_memory(self, req: Any) -> bool:
        return bool(req == "held")

    def wrap_adder(self, adder: type) -> type:
        return type("Of" + adder.__name__, (adder,), {})

    def memory_checked(self, owners: Any) -> None:
        self.checked.append(owners)


def test_where_nothing_is_beside_sglang_goes_its_way() -> None:
    for nothing in (Extensions(), Extensions([Idle(), Idle()])):
        assert nothing.prefill("batch", lambda batch: f"plan of {batch}") == "plan of batch"
        assert nothing.idle
        assert not nothing.computes_beside(None)
        assert not nothing.has_its_memory("req")
        assert (nothing.lent, nothing.lent_tokens) == ([], 0)
        assert nothing.wrap_adder(dict) is dict
        nothing.pass_begins(None)
        nothing.launched(None)
        nothing.while_paused()
        nothing.memory_checked([])
        with nothing.engine_pauses():
            pass


def test_answers_of_all_are_put_together() -> None:
    first, second = Holds(), Holds()
    extensions = Extensions([first, Idle(), second])
    assert not extensions.idle
    assert (extensions.lent, extensions.lent_tokens) == (["cells"] * 2, 14)
    assert extensions.has_its_memory("held")
    assert not extensions.has_its_memory("other")
    extensions.memory_checked(["owner"])
    assert first.checked == second.checked == [["owner"]]


def test_each_wraps_what_the_ones_before_it_made() -> None:
    class Adder: ...

    wrapped = Extensions([Holds(), Idle(), Holds()]).wrap_adder(Adder)
    assert [each.__name__ for each in wrapped.__mro__[:3]] == ["OfOfAdder", "OfAdder", "Adder"]


def test_one_is_found_by_its_class() -> None:
    extensions = Extensions([idle := Idle()])
    assert extensions.get(Idle) is idle
    with pytest.raises(LookupError, match="no Holds is beside this scheduler"):
        extensions.get(Holds)
    extensions.add(holds := Holds())
    assert extensions.get(Holds) is holds
    assert list(extensions) == [idle, holds]


def test_a_pause_that_fails_ends_for_all() -> None:
    ended: list[Extension] = []

    class Ends(Extension):
        @contextmanager
        def engine_pauses(self) -> Iterator[None]:
            try:
                yield
            finally:
                ended.append(self)

    first, second = Ends(), Ends()
    with pytest.raises(ZeroDivisionError), Extensions([first, second]).engine_pauses():
        raise ZeroDivisionError
    assert ended == [second, first]


# ---- which are switched on ----------------------------------------------------------

LAYERS, GROUPS, RESTORE, LEDGER = (
    "layerwise.layers_extension",
    "kv.group_hooks",
    "restore.restore_extension",
    "kv.memory_ledger",
)
OURS = {ATTRIBUTE: TokenFlowConfig()}
IN_GROUPS = {ATTRIBUTE: TokenFlowConfig(block_groups=True)}
BY_LAYERS = {LAYERWISE_ATTRIBUTE: LayerwiseSettings("auto", 2.0)}
RESTORING = {RESTORE_ATTRIBUTE: "auto"}


@pytest.mark.parametrize(
    ("options", "strict", "found"),
    [
        ({}, False, []),
        ({}, True, []),
        (OURS, False, []),
        (OURS, True, [LEDGER]),
        (IN_GROUPS, False, [GROUPS]),
        (BY_LAYERS, True, [LAYERS]),
        (RESTORING, True, [RESTORE]),
        ({**OURS, **RESTORING}, True, [RESTORE, LEDGER]),
        ({**IN_GROUPS, **RESTORING, **BY_LAYERS}, True, [LAYERS, GROUPS, RESTORE, LEDGER]),
    ],
)
def test_options_switch_extensions_on_in_the_order_in_which_they_are_built(
    monkeypatch, options, strict, found
) -> None:
    monkeypatch.setenv("SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY", str(int(strict)))
    args: Any = SimpleNamespace(**options)
    monkeypatch.setattr(features.importlib, "import_module", lambda name: name)
    assert [*features_on(args)] == [f"tokenflow_sgl.engine.{name}" for name in found]


def test_every_extension_can_be_declared_and_built() -> None:
    for feature in FEATURES:
        module = feature.load()
        assert callable(module.register)
        assert callable(module.build)


# ---- what a plain server imports ----------------------------------------------------

IMPORTS = """
import importlib, sys
for name in {modules}:
    importlib.import_module(name)
print(*sorted(name for name in sys.modules if name.startswith("tokenflow_sgl")))
"""
PLAIN = ("tokenflow_sgl.engine.shell", "tokenflow_sgl.engine.plugin")
"""Of a server's launch, and of its scheduler's process."""
SWITCHED_ON = (
    "tokenflow_sgl.engine.body.decode",
    "tokenflow_sgl.engine.body.placed",
    "tokenflow_sgl.engine.decode_server",
    "tokenflow_sgl.engine.kv.group_",
    "tokenflow_sgl.engine.kv.memory_ledger",
    "tokenflow_sgl.engine.layerwise.",
    "tokenflow_sgl.engine.restore",
    "tokenflow_sgl.lab",
    "tokenflow_sgl.restoration",
    "tokenflow_sgl_emulator",
)
"""How the names of modules begin that no server imports which did not ask for them."""


def imported(*modules: str) -> tuple[list[str], list[str]]:
    """Modules of ours that a process has which imports these, and those of them switched on."""
    # SGLang looks into all platforms that are installed, the emulator among them, unless told.
    env = {**os.environ, "SGLANG_PLUGINS": "tokenflow"}
    env.pop("SGLANG_PLATFORM", None)
    code = IMPORTS.format(modules=modules)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=env,
    )
    found = done.stdout.splitlines()[-1].split()
    return found, [name for name in found if name.startswith(SWITCHED_ON)]


@pytest.mark.long
def test_a_plain_server_imports_no_extension() -> None:
    found, others = imported(*PLAIN)
    assert set(found) >= {*PLAIN, "tokenflow_sgl.engine.core", "tokenflow_sgl.engine.body.unified"}
    assert others == []


@pytest.mark.long
def test_control_an_extension_that_is_imported_is_seen() -> None:
    _, others = imported(*PLAIN, *(feature.module for feature in FEATURES))
    assert {feature.module for feature in FEATURES} <= set(others)
