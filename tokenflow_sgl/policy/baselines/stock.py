"""The engine's own policy: never intervene."""

from __future__ import annotations

from tokenflow_sgl.contract import Decision, Mode, State


class StockPolicy:
    """Always idle. Shows what the hooks alone cost, and serves as a control."""

    def decide(self, state: State) -> Decision:
        """Leave everything to the engine."""
        return Decision(Mode.IDLE)
