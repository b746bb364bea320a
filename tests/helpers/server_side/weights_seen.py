"""A policy that keeps the streams' weights as it has seen them, in a file for each process."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tokenflow_sgl.contract import Decision, State
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.policy.working_set import WorkingSetPolicy


class WeightsSeen:
    """Decides as `working-set` does, and writes down each change of the weights."""

    def __init__(self) -> None:
        self._policy = WorkingSetPolicy(WorkingSetConfig())
        self._seen: list[list[float] | None] = []

    def decide(self, state: State) -> Decision:
        """Note the weights, then decide."""
        weight = state.streams.weight
        seen = None if weight is None else weight.tolist()
        if not self._seen or self._seen[-1] != seen:
            self._seen.append(seen)
            folder = Path(os.environ["TOKENFLOW_TEST_WEIGHTS"])
            (folder / f"{os.getpid()}.json").write_text(json.dumps(self._seen))
        return self._policy.decide(state)
