"""What decides how much of a head is computed while its tail is fetched, by name."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from tokenflow_sgl.policy.named_class import load_class
from tokenflow_sgl.restoration import Fetch, Seconds, head_tokens

logger = logging.getLogger(__name__)

PLANNERS = ("auto",)
"""Names that `make_planner` knows, beside package.module:Class."""


class Planner(Protocol):
    """Decides anew before each chunk."""

    def head_tokens(
        self,
        prefix: int,
        gap: int,
        *,
        compute: Seconds,
        fetch: Fetch,
        page: int,
        lead: float,
        wait: float,
    ) -> int:
        """See `restoration.head_tokens`."""
        ...


class MeetingPoint:
    """Head and tail are done at the same time."""

    def head_tokens(
        self,
        prefix: int,
        gap: int,
        *,
        compute: Seconds,
        fetch: Fetch,
        page: int,
        lead: float,
        wait: float,
    ) -> int:
        """See `restoration.head_tokens`."""
        return head_tokens(
            prefix, gap, compute=compute, fetch=fetch, page=page, lead=lead, wait=wait
        )


class GuardedPlanner:
    """A planner of the user's, until it fails or says what cannot be; then `MeetingPoint`."""

    def __init__(self, name: str, planner: Planner) -> None:
        self._name = name
        self._planner: Planner = planner

    def head_tokens(self, prefix: int, gap: int, *, page: int, **known: Any) -> int:
        """As the planner says, in whole pages or the whole gap."""
        try:
            said = int(self._planner.head_tokens(prefix, gap, page=page, **known))
            if not 0 <= said <= gap or (said % page and said != gap):
                raise ValueError(
                    f"head_tokens is {said}; allowed is 0 to {gap} in whole pages of {page}"
                )
            return said
        except Exception:
            logger.exception("tokenflow: the planner %s failed; auto goes on", self._name)
            self._planner = MeetingPoint()
            return int(self._planner.head_tokens(prefix, gap, page=page, **known))


def make_planner(name: str) -> Planner:
    """The planner of a name.

    Args:
        name: One of `PLANNERS`, or package.module:Class; the class is called without arguments.

    Raises:
        ConfigError: The name leads nowhere, or to something that does not plan.
    """
    if name in PLANNERS:
        return MeetingPoint()
    planner: Planner = load_class(name, "restore", ("off", *PLANNERS), ("head_tokens",))
    return GuardedPlanner(name, planner)
