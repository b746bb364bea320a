"""What scripts for all bodies share: who does what, decisions, sizes, bodies that break a rule."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from inspect import signature
from typing import TYPE_CHECKING, Any

import pytest

from tokenflow_sgl.contract import Cause, Decision, Growth, Mode, Phase, Preempt, Restore, When
from tokenflow_sgl.offload import DeviceRoom

if TYPE_CHECKING:
    from lifecycle_bodies import Rig

AMPLE, SCARCE = 1000, 60
"""Free tokens: for everything, and for less than one prefetch beside a running stream."""
RESERVE = 48
"""Tokens that prefetches leave to one running stream and one more."""


class Deed(Enum):
    """What not every body does, by its nature."""

    WRITE = "copies KV of running streams to the host"
    PREFETCH = "loads KV ahead of the step that needs it"


DONE: dict[str, frozenset[Deed]] = {
    "SimRig": frozenset(Deed),
    "EngineRig": frozenset(Deed),
    "DecodeRig": frozenset(),
    "PlacedRig": frozenset(),
}
"""By rig: what its body does. What is not among it the body must not do: scripts say so, too."""
NAMES = {
    "SimRig": "simulator",
    "EngineRig": "engine",
    "DecodeRig": "decode",
    "PlacedRig": "layer-wise",
}

Script = Callable[..., None]
Break = Callable[[pytest.MonkeyPatch, type], None]
Controls = dict[str, tuple[Break, Script]]
"""By what is wrong with a body: how it comes about, and the script that has to fail then."""


def working(**actions) -> Decision:
    return Decision(Mode.WORKING_SET, **actions)


def preempt(slot: int) -> Preempt:
    return Preempt(slot, Cause.EXCHANGE)


def ahead(slot: int) -> Restore:
    return Restore(slot, when=When.AHEAD)


def phase(rig: Rig, slot: int) -> Phase:
    return Phase(int(rig.phases.phase[slot]))


def does(verb: str, deed: Callable[..., Any]) -> Break:
    return lambda patch, body: patch.setattr(body, verb, deed)


def says(name: str, value: bool) -> Break:
    return lambda patch, body: patch.setattr(body, name, property(lambda self: value))


def takes_memory_that_is_not_there(patch: pytest.MonkeyPatch, body: type) -> None:
    patch.setattr(body, "room", property(lambda self: DeviceRoom(10**6, 0, 0, Growth())))


def on(*rigs: str) -> Callable[[Script], Script]:
    """Run a script, which takes `make` or `rig`, on these rigs only."""

    def limited(script: Script) -> Script:
        vars(script)["rigs"] = rigs
        return pytest.mark.parametrize("make", rigs, ids=NAMES.__getitem__, indirect=True)(script)

    return limited


def does_it(deed: Deed) -> Callable[[Script], Script]:
    """Run a script on the bodies that do this."""
    return on(*(rig for rig, done in DONE.items() if deed in done))


def does_not(deed: Deed) -> Callable[[Script], Script]:
    """Run a script on the bodies that do not: it says what they do instead."""
    return on(*(rig for rig, done in DONE.items() if deed not in done))


def each_body(controls: Controls) -> pytest.MarkDecorator:
    """Every control with every body that its script runs on, as `make` and `broken`."""
    pairs = [
        pytest.param(rig, broken, id=f"{NAMES[rig]}-{broken}")
        for broken, (_, script) in controls.items()
        for rig in getattr(getattr(script, "func", script), "rigs", DONE)
    ]
    return pytest.mark.parametrize(("make", "broken"), pairs, indirect=["make"])


def assert_fails(
    breaks: Break, script: Script, make: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script fails with a body that breaks the rule which it is about."""
    breaks(monkeypatch, type(make(AMPLE).body))
    bodies = {"make": make, "rig": make(AMPLE), "mode": Mode.WORKING_SET}
    wanted = {name: body for name, body in bodies.items() if name in signature(script).parameters}
    with pytest.raises(AssertionError):
        script(**wanted)
