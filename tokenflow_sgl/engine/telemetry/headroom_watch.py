"""Headroom of the live scheduler, and the wait of newcomers: for gauges, and for its load."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from tokenflow_sgl.contract import State
from tokenflow_sgl.engine.telemetry.prometheus import Recorder
from tokenflow_sgl.engine.telemetry.sampling import SAMPLE_SECONDS
from tokenflow_sgl.lifecycle.door import Door
from tokenflow_sgl.lifecycle.wait_calibration import WaitCalibration
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.policy.deadlines import lost_deadlines
from tokenflow_sgl.policy.headroom import headroom, promised
from tokenflow_sgl.policy.outlook import outlook

logger = logging.getLogger(__name__)


class HeadroomWatch:
    """Looks now and then while there are streams, and once when there are none any more.

    Args:
        config: The policy's, by which newcomers will be admitted.
        recorder: Is told; NaN where it cannot be known.
        every: Seconds between two looks.

    Attributes:
        tokens: As last seen; None: it is not known.
        promised: Share of the engine's memory or time that is promised, likewise.
    """

    def __init__(
        self, config: WorkingSetConfig, recorder: Recorder, every: float = SAMPLE_SECONDS
    ) -> None:
        self._config = config
        self._every = every
        self._door, self._calibration = Door(), WaitCalibration()
        self._rows: list[list[float]] | None = None
        self._now = 0.0
        self._recorder = recorder
        self._next = -math.inf
        self._empty = False
        self._failed = False
        self.tokens: int | None = None
        self.promised: float | None = None

    def look(self, now: float, streams: int, state: Callable[[], State]) -> None:
        """Look at the headroom as a pass of the scheduler begins, if it is time.

        Args:
            now: Seconds on the engine's clock, which stands still while there are no streams.
            streams: That are here.
            state: Builds what a policy sees; called only when it is time.
        """
        self._now = now
        if now < self._next if streams else self._empty:
            return
        self._next, self._empty = now + self._every, not streams
        try:
            seen = state()
            self.tokens = round(headroom(seen, self._config))
            self.promised = promised(seen, self._config)
            self._recorder.lost_deadlines(lost_deadlines(seen))
            forecast = outlook(seen, self._config, self._door.usual)
            found = self._calibration.seen(forecast, seen.streams)
            self._door.look(found)
            self._rows = [found.prompt.tolist(), *found.wait.tolist()]
        except Exception:
            # A length predictor may be the operator's own; no server ends for a gauge.
            self.tokens = self.promised = None
            self._door, self._rows = Door(), None
            if not self._failed:
                self._failed = True
                logger.exception(
                    "tokenflow:headroom_tokens and the wait of newcomers are not known, so none is "
                    "refused; told once"
                )
        unknown = math.nan
        self._recorder.headroom(
            unknown if self.tokens is None else self.tokens,
            unknown if self.promised is None else self.promised,
            unknown if self.wait is None else self.wait,
        )

    @property
    def wait(self) -> float | None:
        """Seconds that a usual newcomer would wait as of the present pass; None: not known."""
        return None if self._door.outlook is None else self._door.expected(self._now)

    @property
    def published(self) -> list[list[float]] | None:
        """The last outlook for other processes, which cost a step little; None: not known.

        As of `Door.since`, its prompts, and a row of waits for each.
        """
        return None if self._rows is None else [[*self._door.since(self._now)], *self._rows]

    def comes(self, now: float, prompt: int) -> float:
        """A request has come; returns the wait that is expected for it, 0.0 while none is known.

        Args:
            now: Seconds on the engine's clock.
            prompt: Tokens of its prompt.
        """
        expected = self._door.expected(now, prompt)
        self._door.let_in()
        self._empty = False  # it may be gone again before the next look
        return expected
