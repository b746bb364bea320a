"""The one method of a policy."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from tokenflow_sgl.contract.decision import Decision
from tokenflow_sgl.contract.memory import Memory
from tokenflow_sgl.contract.state import State


class Policy(Protocol):
    """Decides which streams run. Pure: no clock, no I/O, no state of its own between passes.

    What it has to remember goes into `Decision.memo` and comes back as `State.memo`.
    """

    def decide(self, state: State) -> Decision:
        """Answer `state`. Called once per scheduler iteration; must not mutate `state`.

        May raise: the live engine then runs its own policy for this pass, counts the error and logs
        the first one.
        """
        ...


@runtime_checkable
class CalmPolicy(Policy, Protocol):
    """Can tell without looking at the streams that it has nothing to do: saves building a state."""

    def calm(self, memory: Memory, memo: object) -> Decision | None:
        """What `decide` would answer where all streams run; None: that depends on the streams."""
        ...
