"""What layer-wise KV moves and waits for, as metrics."""

from __future__ import annotations

import time

from tokenflow_sgl.engine.layerwise.layer_executor import LayerExecutor
from tokenflow_sgl.engine.layerwise.wait_times import CAUSES
from tokenflow_sgl.engine.telemetry.prometheus import Recorder
from tokenflow_sgl.engine.telemetry.sampling import SAMPLE_SECONDS


class LayerReport:
    """Reports what an executor has counted, every `SAMPLE_SECONDS`.

    By the machine's own clock: a virtual one stands still while nothing is served.

    Args:
        executor: Counts pages of one layer.
        page: Tokens of a page.
        recorder: Hears of KV tokens, which are of all layers.
    """

    def __init__(self, executor: LayerExecutor, page: int, recorder: Recorder) -> None:
        self._executor, self._recorder = executor, recorder
        self._tokens = page / executor.places.layers
        self._pages = {"staged": 0, "load": 0, "store": 0}
        self._seconds = dict(executor.waits.seconds)
        self._sampled = -SAMPLE_SECONDS

    def look(self) -> None:
        """A pass of the scheduler."""
        if not self._recorder.listens:
            return
        now = time.monotonic()
        if now - self._sampled >= SAMPLE_SECONDS:
            self._sampled = now
            self._report()

    def _report(self) -> None:
        executor, recorder = self._executor, self._recorder
        pages = {"staged": executor.fetched, "load": executor.loaded, "store": executor.stored}
        more = {name: (pages[name] - self._pages[name]) * self._tokens for name in pages}
        self._pages = pages
        recorder.count("layers_staged_tokens_total", more["staged"])
        for direction in ("load", "store"):
            recorder.count("layers_moved_tokens_total", more[direction], direction=direction)
        executor.waits.learn()
        seconds = dict(executor.waits.seconds)
        for cause in CAUSES:
            waited = seconds[cause] - self._seconds[cause]
            recorder.count("layers_wait_seconds_total", waited, cause=cause)
        self._seconds = seconds
        recorder.layers_on_host(executor.places.host_share)
