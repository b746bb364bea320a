"""Asks the policy, and stands in for it when it has nothing to say or fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from tokenflow_sgl.contract import Decision, Mode, Policy, Preempt, State
from tokenflow_sgl.lifecycle.phases import Phases
from tokenflow_sgl.lifecycle.resting import decide, hidden, rests

logger = logging.getLogger(__name__)

IDLE_SECONDS = 0.25
"""How long an idle decision stands while no stream arrives, leaves or changes its phase."""
AMPLE_SHARE = 0.2
"""Share of free device memory above which it stands."""


class Listener(Protocol):
    """Is told how the policy does: the engine's metrics."""

    def policy_pass(self, mode: Mode, seconds: float) -> None:
        """A pass was decided in so many seconds."""
        ...

    def policy_error(self) -> None:
        """Told that the policy has failed."""
        ...

    def decided(self, state: State, decision: Decision) -> None:
        """Told what the policy has decided."""
        ...


class Decider:
    """One policy's decisions, pass by pass.

    Args:
        policy: Decides.
        name: What it is called in the log.
        phases: Of the streams; an idle decision stands while they do not change.
        listener: Is told of each pass. None: the policy's failures are raised, not replaced.

    Attributes:
        memo: What the policy wants to see again in its next state.
    """

    def __init__(
        self, policy: Policy, name: str, phases: Phases, listener: Listener | None = None
    ) -> None:
        self._policy = policy
        self._name = name
        self._phases = phases
        self._listener = listener
        self._failed = False
        self._idle_version, self._idle_until = -1, 0.0
        self._hidden: frozenset[int] = frozenset()
        self.memo: object = None

    def decide(
        self,
        now: float,
        streams: int,
        free_share: float,
        state: Callable[[], State],
        calm: Callable[[], Decision | None] = lambda: None,
    ) -> Decision:
        """The decision for this pass.

        Args:
            now: Seconds on the body's clock.
            streams: That are here.
            free_share: Free part of the device's KV memory.
            state: Builds the state; not called while an idle decision stands.
            calm: What the policy decides without one; None: it has to see the state.
        """
        if not streams or self._still_idle(now, free_share):
            return Decision(Mode.IDLE, hidden=self._hidden, memo=self.memo)
        decision = calm() or self._ask(state)
        self.memo, self._hidden = decision.memo, decision.hidden
        if decision.mode is Mode.IDLE:
            self._idle_version, self._idle_until = self._phases.version, now + IDLE_SECONDS
        return decision

    def stands_until(self, free_share: float) -> float:
        """Until when the last idle decision stands if nothing happens; -inf: not at all."""
        return self._idle_until if free_share >= AMPLE_SHARE else -float("inf")

    def _ask(self, state: Callable[[], State]) -> Decision:
        listener = self._listener
        if listener is None:
            return decide(self._policy, state())
        started = time.perf_counter()
        away, leave = self._hidden, tuple[Preempt, ...]()
        try:
            seen = state()
            away, leave = hidden(seen), rests(seen)
            decision = decide(self._policy, seen)
        except Exception:
            listener.policy_error()
            if not self._failed:
                self._failed = True
                logger.exception(
                    "tokenflow policy %s failed; this pass runs SGLang's own policy. Further "
                    "failures are counted in tokenflow:policy_errors_total and not logged",
                    self._name,
                )
            decision = Decision(Mode.FALLBACK, preempt=leave, hidden=away, memo=self.memo)
        else:
            listener.decided(seen, decision)
        listener.policy_pass(decision.mode, time.perf_counter() - started)
        return decision

    def _still_idle(self, now: float, free_share: float) -> bool:
        """The last decision was to stay out of the way, and nothing has happened since."""
        return (
            self._idle_version == self._phases.version
            and now < self._idle_until
            and free_share >= AMPLE_SHARE
        )
