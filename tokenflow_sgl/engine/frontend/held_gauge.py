"""The gauge of tokens that wait in token deposits; each HTTP worker shows its own share."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

from tokenflow_sgl.engine.sglang.server import Manager
from tokenflow_sgl.engine.telemetry.prometheus import make_metric
from tokenflow_sgl.metrics import METRICS

logger = logging.getLogger(__name__)


class HeldGauge:
    """Tokens that wait in the deposits of this process.

    Attributes:
        tokens: How many they are.

    Args:
        shown: Prometheus' gauge; None: the server shows no metrics.
    """

    def __init__(self, shown: Any = None) -> None:
        self.tokens = 0
        self._shown = shown

    def add(self, tokens: int) -> None:
        """Count tokens that wait; below 0: that wait no longer."""
        self.tokens += tokens
        if self._shown is not None:
            self._shown.set(self.tokens)


@lru_cache(maxsize=1)
def gauge_of(manager: Manager) -> HeldGauge:
    """The gauge of the process, which has one TokenizerManager."""
    if not manager.enable_metrics:
        return HeldGauge()
    labels = manager.metrics_collector.labels
    try:
        return HeldGauge(make_metric(METRICS["deposit_tokens"], [*labels]).labels(**labels))
    except OSError as error:  # the folder of the metrics is gone, or its disk full
        logger.error("tokenflow:deposit_tokens is not shown: %s", error)
        return HeldGauge()
