"""The shipped policy, with a note of how long each resume takes: for `--tokenflow-policy`.

A resume begins with the decision that schedules a paused stream, to run or to be prefetched, and
preempts others for it where memory is missing; it ends when the stream has another token. Each is
a line of the file that SWITCH_TIMES names: seconds by the clock that the policy decides by.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np

from tokenflow_sgl.contract import Decision, State
from tokenflow_sgl.policy import WorkingSetConfig, WorkingSetPolicy

FILE = "SWITCH_TIMES"


class Noting(WorkingSetPolicy):
    """Decides as the working-set policy does, and appends to the file."""

    def __init__(self, config: WorkingSetConfig | None = None, file: Path | None = None) -> None:
        super().__init__(config)
        self._file = file or Path(os.environ[FILE])
        self._scheduled: dict[int, tuple[float, int]] = {}  # by slot: when, and its tokens then

    def decide(self, state: State) -> Decision:
        """As ever."""
        decision = super().decide(state)
        streams = state.streams
        tokens = dict(zip(streams.slot.tolist(), streams.generated.tolist(), strict=True))
        done = []
        for slot, (since, before) in tuple(self._scheduled.items()):
            if tokens.get(slot, -1) != before:
                del self._scheduled[slot]
                if tokens.get(slot, -1) > before:
                    done.append(f"{state.now - since:.6f}\n")
        if done:
            with self._file.open("a", encoding="utf-8") as file:
                file.writelines(done)
        away = set(streams.slot[streams.paused_or_loading].tolist())
        for slot in (*decision.run, *(each.slot for each in decision.restore)):
            if slot in away:
                self._scheduled.setdefault(slot, (state.now, tokens[slot]))
        return decision


Whole = partial(Noting, WorkingSetConfig())
Chunks = partial(Noting, WorkingSetConfig(load_chunks=True))
Late = partial(Noting, WorkingSetConfig(write_ahead=False))
LateChunks = partial(Noting, WorkingSetConfig(write_ahead=False, load_chunks=True))


def summary(file: Path) -> dict[str, float]:
    """How many resumes there were, and percentiles of their seconds."""
    seconds = np.loadtxt(file, ndmin=1)
    p50, p99 = np.percentile(seconds, (50, 99))
    return {
        "count": len(seconds),
        "mean_s": float(seconds.mean()),
        "p50_s": float(p50),
        "p99_s": float(p99),
    }
