"""Asks the policy, and stands in for it when it has nothing to say or fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from tokenflow_sgl.engine.decision_log import DecisionLog
from tokenflow_sgl.engine.metrics import Recorder
from tokenflow_sgl.engine.tracking import StreamTable
from tokenflow_sgl.policy import Decision, Mode, Policy, Recollection, State

logger = logging.getLogger(__name__)

IDLE_SECONDS = 0.25
"""How long an idle decision stands while no stream comes, goes or changes phase."""
AMPLE_SHARE = 0.2
"""Share of free device memory above which it stands."""


class Decider:
    """One policy's decisions, pass by pass.

    recollection: what the policy wants to see again in its next state.
    """

    def __init__(
        self,
        policy: Policy,
        name: str,
        table: StreamTable[Any],
        recorder: Recorder,
        log: DecisionLog | None = None,
    ) -> None:
        self._policy = policy
        self._name = name
        self._table = table
        self._recorder = recorder
        self._log = log
        self._failed = False
        self._idle_version, self._idle_until = -1, 0.0
        self.recollection = Recollection()

    def decide(self, now: float, free_share: float, state: Callable[[], State]) -> Decision:
        """The decision for this pass.

        now: seconds on the shared clock. free_share: free part of the device's KV memory.
        state: builds the state; not called while an idle decision stands.
        """
        if not len(self._table) or self._still_idle(now, free_share):
            return Decision(Mode.IDLE, recollection=self.recollection)
        started = time.perf_counter()
        try:
            seen = state()
            decision = self._policy.decide(seen)
        except Exception:
            self._recorder.policy_error()
            if not self._failed:
                self._failed = True
                logger.exception(
                    "tokenflow policy %s failed; this pass runs SGLang's own policy. Further "
                    "failures are counted in tokenflow:policy_errors_total and not logged",
                    self._name,
                )
            decision = Decision(Mode.FALLBACK, recollection=self.recollection)
        else:
            if self._log is not None:
                self._log.write(seen, decision)
        self._recorder.policy_pass(decision.mode, time.perf_counter() - started)
        self.recollection = decision.recollection
        if decision.mode is Mode.IDLE:
            self._idle_version, self._idle_until = self._table.version, now + IDLE_SECONDS
        return decision

    def _still_idle(self, now: float, free_share: float) -> bool:
        """The last decision was to stay out of the way, and nothing has happened since."""
        return (
            self._idle_version == self._table.version
            and now < self._idle_until
            and free_share >= AMPLE_SHARE
        )
