"""What decides how much of a head is computed while its tail is fetched, by name."""

from __future__ import annotations

import logging
from typing import Any

from tokenflow_sgl.policy.named_class import load_class
from tokenflow_sgl.restoration import HeadPlanner, MeetingPoint

logger = logging.getLogger(__name__)

PLANNERS = ("auto",)
"""Names that `make_planner` knows, beside package.module:Class."""


class GuardedPlanner:
    """A planner of the user's, until it fails or says what cannot be; then `MeetingPoint`.

    It need not have `alone`: then what it plans is done. Nor `by_layers` and `more_layers`: then
    nothing is restored by layers.
    """

    def __init__(self, name: str, planner: HeadPlanner) -> None:
        self._name = name
        self._planner: HeadPlanner = planner

    def alone(self, prefix: int, missing: int, end: int, suffix: int, **known: Any) -> bool:
        """What the user's planner answers; ours answers where it fails."""
        if not hasattr(self._planner, "alone"):
            return False
        try:
            return bool(self._planner.alone(prefix, missing, end, suffix, **known))
        except Exception:
            self._give_up()
            return self.alone(prefix, missing, end, suffix, **known)

    def head_tokens(self, prefix: int, gap: int, *, page: int, **known: Any) -> int:
        """Tokens of the head by the user's planner, in whole pages or the whole gap."""
        try:
            said = int(self._planner.head_tokens(prefix, gap, page=page, **known))
            if not 0 <= said <= gap or (said % page and said != gap):
                raise ValueError(
                    f"head_tokens is {said}; allowed is 0 to {gap} in whole pages of {page}"
                )
            return said
        except Exception:
            self._give_up()
            return int(self._planner.head_tokens(prefix, gap, page=page, **known))

    def by_layers(self, prefix: int, gap: int, suffix: int, **known: Any) -> bool:
        """What the user's planner answers; ours answers where it fails."""
        if not hasattr(self._planner, "by_layers"):
            return False
        try:
            return bool(self._planner.by_layers(prefix, gap, suffix, **known))
        except Exception:
            self._give_up()
            return self.by_layers(prefix, gap, suffix, **known)

    def more_layers(self, prefix: int, gap: int, suffix: int, **known: Any) -> int:
        """Layers by the user's planner, none to all that are neither computed nor landed."""
        left = max(known["layers"] - known["computed"] - known["landed"], 0)
        try:
            said = int(self._planner.more_layers(prefix, gap, suffix, **known))
            if not 0 <= said <= left:
                raise ValueError(f"more_layers is {said}; allowed is 0 to {left}")
            return said
        except Exception:
            self._give_up()
            return int(self._planner.more_layers(prefix, gap, suffix, **known))

    def _give_up(self) -> None:
        logger.exception("tokenflow: the planner %s failed; auto goes on", self._name)
        self._planner = MeetingPoint()


def make_planner(name: str) -> HeadPlanner:
    """The planner of a name.

    Args:
        name: One of `PLANNERS`, or package.module:Class; the class is called without arguments.

    Raises:
        ConfigError: The name leads nowhere, or to something that does not plan.
    """
    if name in PLANNERS:
        return MeetingPoint()
    planner: HeadPlanner = load_class(name, "restore", ("off", *PLANNERS), ("head_tokens",))
    return GuardedPlanner(name, planner)
