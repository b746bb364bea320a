"""What scripts for both bodies share: decisions, sizes, and bodies that break a rule."""

from __future__ import annotations

from collections.abc import Callable
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

Break = Callable[[pytest.MonkeyPatch, type], None]


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


def assert_fails(
    breaks: Break, script: Callable[..., None], make: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script fails with a body that breaks the rule which it is about."""
    breaks(monkeypatch, type(make(AMPLE).body))
    bodies = {"make": make, "rig": make(AMPLE), "mode": Mode.WORKING_SET}
    wanted = {name: body for name, body in bodies.items() if name in signature(script).parameters}
    with pytest.raises(AssertionError):
        script(**wanted)
