"""The engine's own policy: never intervene."""

from __future__ import annotations

from tokenflow_sgl.policy.decision import Decision, Mode
from tokenflow_sgl.policy.state import State


class StockPolicy:
    """Always idle. Shows what the hooks alone cost, and serves as a control."""

    def decide(self, state: State) -> Decision:
        """Leave everything to the engine."""
        return Decision(Mode.IDLE, recollection=state.recollection)
