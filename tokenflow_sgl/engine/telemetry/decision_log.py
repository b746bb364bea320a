"""The opt-in log of decisions, for `tokenflow explain`: a JSON line per pass that did something.

It holds request ids, which metrics never do; so it goes to a file of the operator's choice and
nowhere else. It is rotated, and busy servers leave lines out rather than slow down.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tokenflow_sgl.contract import Decision, Mode, Phase, State, When
from tokenflow_sgl.engine.ranks import place_in_group, rank_path
from tokenflow_sgl.engine.sglang.worker import Ranks
from tokenflow_sgl.engine.telemetry.line_file import LineFile
from tokenflow_sgl.engine.telemetry.prometheus import Recorder
from tokenflow_sgl.qos import noticed

logger = logging.getLogger(__name__)

LINES_PER_SECOND = 20.0
MOST_CANDIDATES = 8
"""Streams that are shown of each kind beside those that something happened to."""


class DecisionLog:
    """Writes what was decided, and by which figures.

    Args:
        path: Of the present file; older ones get a number behind it.
        name_of: The request id of the stream in a slot.
        clock: Wall clock, Unix seconds.
        recorder: Counts the lines that are lost.
    """

    def __init__(
        self,
        path: Path,
        name_of: Callable[[int], str],
        clock: Callable[[], float] = time.time,
        recorder: Recorder | None = None,
    ) -> None:
        self._name_of = name_of
        self._clock = clock
        self._written = -math.inf
        self._left_out = 0
        self._taken_up: list[str] = []
        self._recorder = recorder or Recorder()
        self._failed = False
        self._file = LineFile(path, self._lost)

    def write(self, state: State, decision: Decision) -> None:
        """A pass has decided; says nothing where nothing happens to anybody.

        Never raises and never waits for the disk. What goes wrong is logged once, and the lines
        that are lost are counted.
        """
        if decision.mode is Mode.WORKING_SET:
            self._guarded(lambda: self._write(state, decision))

    def restored(self, told: dict[str, Any]) -> None:
        """A stored prefix was restored, one way or the other (`RestorationRecord`)."""
        self._guarded(lambda: self._append({"time": round(self._clock(), 3), "restored": told}))

    def _write(self, state: State, decision: Decision) -> None:
        # By name: the slot of a stream that has ended is soon another one's.
        run = [self._name_of(slot) for slot in decision.run]
        fresh = run != self._taken_up and bool(run)
        self._taken_up = run
        if not (decision.preempt or decision.admit or fresh):
            return
        now = self._clock()
        # A wall clock that is set back must not silence the log until it is where it was.
        if 0.0 <= now - self._written < 1.0 / LINES_PER_SECOND and not decision.preempt:
            self._left_out += 1
            return
        self._written = now
        self._append(self._line(now, state, decision))
        self._left_out = 0

    def _append(self, line: dict[str, Any]) -> None:
        self._file.append(line)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            self._lost()
            if not self._failed:
                self._failed = True
                logger.exception("tokenflow: a line of the decision log failed; told once")

    def _lost(self) -> None:
        self._recorder.count("decision_log_lost_lines_total", 1)

    def close(self) -> None:
        """Wait until all is written, and close the file."""
        self._file.close()

    def _line(self, now: float, state: State, decision: Decision) -> dict[str, Any]:
        streams, memory = state.streams, state.memory
        phase = streams.phase
        counts = {each.name.lower(): int(np.count_nonzero(phase == each)) for each in Phase}
        return {
            "time": round(now, 3),
            "left_out": self._left_out,
            "streams": counts,
            "stalled": int(np.count_nonzero(noticed(-state.slack[streams.seen > 0]))),
            "device_free": memory.kv.free,
            "device_total": memory.kv.total,
            "preempt": [
                {"rid": self._name_of(each.slot), "cause": each.cause.value}
                for each in decision.preempt
            ],
            "admit": [self._name_of(slot) for slot in decision.admit],
            "take_up": [self._name_of(slot) for slot in decision.run],
            "load": [
                self._name_of(each.slot) for each in decision.restore if each.when is When.AHEAD
            ],
            "hold_prefill": decision.prefill.hold,
            "candidates": self._candidates(state, decision),
        }

    def _candidates(self, state: State, decision: Decision) -> list[dict[str, Any]]:
        """Streams that something happens to, those closest to a stall, and those furthest ahead."""
        streams, slack = state.streams, state.slack
        moved = {*(each.slot for each in decision.preempt), *decision.admit, *decision.run}
        chosen = np.isin(streams.slot, list(moved))
        running = streams.running
        urgent = np.where(running, np.inf, slack)
        ahead = np.where(running, -slack, np.inf)
        for order in (np.argsort(urgent), np.argsort(ahead)):
            chosen[order[:MOST_CANDIDATES]] = True
        return [self._stream(state, float(slack[i]), int(i)) for i in np.nonzero(chosen)[0]]

    def _stream(self, state: State, slack: float, index: int) -> dict[str, Any]:
        streams = state.streams
        return {
            "rid": self._name_of(int(streams.slot[index])),
            "phase": Phase(int(streams.phase[index])).name.lower(),
            "rate": round(float(streams.rate[index]), 3),
            "slack": round(slack, 3) if math.isfinite(slack) else None,
            "prompt": int(streams.prompt[index]),
            "uncached": int(streams.uncached[index]),
            "own": int(streams.own[index]),
            "generated": int(streams.generated[index]),
            "expected": round(float(streams.expected[index])),
        }


class DecisionListener:
    """Hears the decider: counts in the metrics, and writes the log if there is one.

    Args:
        recorder: The metrics.
        log: Of decisions; None: none is kept.
    """

    def __init__(self, recorder: Recorder, log: DecisionLog | None) -> None:
        self._log = log
        self.policy_pass = recorder.policy_pass
        self.policy_error = recorder.policy_error

    def decided(self, state: State, decision: Decision) -> None:
        """Write what the policy has decided in this pass."""
        if self._log is not None:
            self._log.write(state, decision)


def open_log(
    path: str, ranks: Ranks, request: Callable[[int], Any], recorder: Recorder
) -> DecisionLog | None:
    """The log of decisions, if there is to be one: on one of the ranks, which decide alike.

    Args:
        path: As configured; empty: none is kept.
        ranks: SGLang's, of this process.
        request: The request in a slot.
        recorder: Counts the lines that are lost.
    """
    if not path or place_in_group(ranks):
        return None

    def name(slot: int) -> str:
        return str(getattr(request(slot), "rid", slot))

    where = rank_path(path, ranks.dp_rank, ranks.pp_rank)
    return DecisionLog(where, name, recorder=recorder)
