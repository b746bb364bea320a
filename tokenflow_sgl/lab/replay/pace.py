"""Whether an emulated device kept its pace during a run, and how much slower it has to go."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenflow_sgl.lab.replay.replay_options import ReplayError
from tokenflow_sgl.lab.replay.target import Target, emulated_device, get_json, open_session

MAX_LATE_SHARE = 0.01
"""Share of an emulated device's steps that may be late, and of its time that it may starve."""
RESERVE = 0.5
"""Share of the allowed share to plan for, since another run is slow at other moments."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How an emulated device did; empty for a real device, and for one that kept its pace.

    Attributes:
        lost: Why its figures must not be trusted, in sentences.
        dilation: The time dilation at which it would have kept its pace; infinite: none that it
            keeps count of.
    """

    lost: tuple[str, ...] = ()
    dilation: float = 0.0


async def pace(before: Target) -> Pace:
    """How a device did since `before` was read.

    It must have done its steps in time, and must not have starved because the CPU did not submit
    them. Without overlap scheduling a real device starves too, so there that is no reason.
    """
    if not before.device:
        return Pace()
    async with open_session(before) as session:
        try:
            now = emulated_device(await get_json(session, before, "/server_info"))
        except ReplayError:
            now = {}
    if not now:
        return Pace(
            (
                "The server did not say afterwards whether its emulated device kept its pace. "
                "Next: look for the reason in its log, and replay again.",
            )
        )
    serial = before.known.get("server", {}).get("disable_overlap_schedule", False)
    steps, busy_s = (_since(name, now, before.device) for name in ("steps", "busy_seconds"))
    late, starved_s = _behind(now, before.device)
    lost = []
    if late > MAX_LATE_SHARE * steps:
        lost.append(
            f"The emulated device was late in {late:.0f} of {steps:.0f} steps (allowed: "
            f"{MAX_LATE_SHARE:.0%}): the machine is too slow for its time dilation."
        )
    if starved_s > MAX_LATE_SHARE * (busy_s + starved_s) and not serial:
        lost.append(
            f"The emulated device starved for {starved_s / (busy_s + starved_s):.1%} of its time "
            f"(allowed: {MAX_LATE_SHARE:.0%}): the machine is too slow for its time dilation."
        )
    if not lost:
        return Pace()
    share = RESERVE * MAX_LATE_SHARE
    slower, slower_before = (each.get("at_dilation", {}) for each in (now, before.device))
    for dilation in sorted(slower, key=float):
        late, starved_s = _behind(slower[dilation], slower_before.get(dilation, {}))
        if late <= share * steps and (serial or starved_s <= share * (busy_s + starved_s)):
            return Pace(tuple(lost), float(dilation))
    return Pace(tuple(lost), math.inf)


def _behind(now: Mapping[str, Any], before: Mapping[str, Any]) -> tuple[float, float]:
    """Late steps and starved seconds since `before`."""
    return _since("late_steps", now, before), _since("starved_seconds", now, before)


def _since(name: str, now: Mapping[str, Any], before: Mapping[str, Any]) -> float:
    return float(now.get(name, 0.0)) - float(before.get(name, 0.0))
