"""The shipped policy, with a note of where each resume's time goes: for `--tokenflow-policy`.

A resume begins with the decision that schedules a paused stream, to run or to be prefetched, and
preempts others for it where memory is missing; it ends when the stream has another token. Each is
a line of the file that SWITCH_TIMES names: the seconds of each stage of `STAGES`, by the clock that
the policy decides by.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tokenflow_sgl.contract import Decision, FloatArray, Phase, State, Way, When
from tokenflow_sgl.policy import WorkingSetConfig, WorkingSetPolicy

FILE = "SWITCH_TIMES"
STAGES = ("dropped", "admission", "link", "memory", "turn", "in part", "copy", "step")
"""Where a stream is between two passes: no longer planned; offered to admission; to be prefetched,
and another stream is being copied; or none is, so it waits for memory, or behind one that does;
loaded in part (a chunk is under way, or waits for memory); its last chunk, or all of it, is under
way; in a batch."""
SLOWEST = 0.02
"""The share of all resumes that are called the slowest: those around P99."""


class Noting(WorkingSetPolicy):
    """Decides as the working-set policy does, and appends to the file."""

    def __init__(self, config: WorkingSetConfig | None = None, file: Path | None = None) -> None:
        super().__init__(config)
        self._file = file or Path(os.environ[FILE])
        # By slot: its tokens when it was scheduled, and seconds by stage since then.
        self._scheduled: dict[int, tuple[int, dict[str, float]]] = {}
        self._last = 0.0
        self._stage: dict[int, str] = {}  # by slot, until the next pass

    def decide(self, state: State) -> Decision:
        """As ever."""
        decision = super().decide(state)
        streams, passed, done = state.streams, state.now - self._last, []
        self._last = state.now
        index = dict(zip(streams.slot.tolist(), range(len(streams)), strict=True))
        for slot, (before, seconds) in tuple(self._scheduled.items()):
            here = index.get(slot)
            phase = None if here is None else int(streams.phase[here])
            stage = "step" if phase == Phase.RUNNING else self._stage[slot]
            begun = phase == Phase.LOADING or bool(here is not None and streams.ready[here])
            if begun and stage in ("link", "memory", "turn"):
                stage = "copy"
            seconds[stage] += passed
            if here is None or streams.generated[here] != before:
                del self._scheduled[slot], self._stage[slot]
                if here is not None and streams.generated[here] > before:
                    done.append(" ".join(f"{seconds[each]:.6f}" for each in STAGES) + "\n")
        if done:
            with self._file.open("a", encoding="utf-8") as file:
                file.writelines(done)
        self._look(decision, state, index)
        return decision

    def _look(self, decision: Decision, state: State, index: dict[int, int]) -> None:
        """Which resumes begin, and where all of them are until the next pass."""
        streams = state.streams
        away, run = streams.paused_or_loading, set(decision.run)
        for slot in (*decision.run, *(each.slot for each in decision.restore)):
            here = index.get(slot)
            if here is not None and away[here]:
                began = int(streams.generated[here]), dict.fromkeys(STAGES, 0.0)
                self._scheduled.setdefault(slot, began)
        ahead = [
            each.slot
            for each in decision.restore
            if each.way is Way.LOAD and each.when is When.AHEAD
        ]
        copying = bool((streams.loading & ~streams.partly_loaded).any())
        for slot in self._scheduled:
            here = index[slot]
            if streams.loading[here]:
                self._stage[slot] = "in part" if streams.partly_loaded[here] else "copy"
            elif slot in run:
                self._stage[slot] = "admission"
            elif slot in ahead:
                waits = "memory" if slot == ahead[0] else "turn"
                self._stage[slot] = "link" if copying else waits
            else:
                self._stage[slot] = "dropped"


Whole = partial(Noting, WorkingSetConfig())
Chunks = partial(Noting, WorkingSetConfig(load_chunks=True))
Late = partial(Noting, WorkingSetConfig(write_ahead=False))
LateChunks = partial(Noting, WorkingSetConfig(write_ahead=False, load_chunks=True))


def summary(file: Path) -> dict[str, Any]:
    """How many resumes there were, percentiles of their seconds, and where the seconds went.

    Returns:
        Of all resumes `count`, `mean_s`, `p50_s` and `p99_s`; `dropped`: the share that a plan left
        out meanwhile, and that share of the seconds of the slowest (`SLOWEST`); `kept`: the same
        figures of the others, and their mean seconds by stage.
    """
    stages = np.loadtxt(file, ndmin=2)
    seconds = stages.sum(axis=1)
    dropped = stages[:, STAGES.index("dropped")]
    kept = stages[dropped == 0.0]
    slowest = np.argsort(-seconds)[: max(int(len(seconds) * SLOWEST), 1)]
    return {
        **_figures(seconds),
        "dropped": {
            "share": float((dropped > 0.0).mean()),
            "of_slowest": float(dropped[slowest].sum() / seconds[slowest].sum()),
        },
        "kept": {
            **_figures(kept.sum(axis=1)),
            "stages_s": dict(zip(STAGES, kept.mean(axis=0).tolist(), strict=True)),
        },
    }


def _figures(seconds: FloatArray) -> dict[str, float]:
    p50, p99 = np.percentile(seconds, (50, 99))
    return {
        "count": len(seconds),
        "mean_s": float(seconds.mean()),
        "p50_s": float(p50),
        "p99_s": float(p99),
    }
