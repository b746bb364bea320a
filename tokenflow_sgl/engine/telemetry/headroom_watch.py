"""Headroom of the live scheduler: for its gauge, and for what it reports of its load."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from tokenflow_sgl.contract import State
from tokenflow_sgl.engine.telemetry.prometheus import Recorder
from tokenflow_sgl.engine.telemetry.sampling import SAMPLE_SECONDS
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.policy.headroom import headroom, promised

logger = logging.getLogger(__name__)


class HeadroomWatch:
    """Looks once a second while there are streams, and once when there are none any more.

    Args:
        config: The policy's, by which newcomers will be admitted.
        recorder: Is told; NaN where it cannot be known.

    Attributes:
        tokens: As last seen; None: it is not known.
        promised: Share of the engine's memory or time that is promised, likewise.
    """

    def __init__(self, config: WorkingSetConfig, recorder: Recorder) -> None:
        self._config = config
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
        if now < self._next if streams else self._empty:
            return
        self._next, self._empty = now + SAMPLE_SECONDS, not streams
        try:
            seen = state()
            self.tokens = round(headroom(seen, self._config))
            self.promised = promised(seen, self._config)
        except Exception:
            # A length predictor may be the operator's own; no server ends for a gauge.
            self.tokens = self.promised = None
            if not self._failed:
                self._failed = True
                logger.exception("tokenflow:headroom_tokens is not known; told once")
        unknown = math.nan
        self._recorder.headroom(
            unknown if self.tokens is None else self.tokens,
            unknown if self.promised is None else self.promised,
        )
