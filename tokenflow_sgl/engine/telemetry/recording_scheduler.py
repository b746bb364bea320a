"""SGLang's scheduler with our metrics beside its own."""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.scheduler import Scheduler

from tokenflow_sgl.engine.announcement import announcement
from tokenflow_sgl.engine.telemetry.prometheus import PrometheusRecorder, Recorder


class RecordingScheduler(Scheduler):  # type: ignore[misc]
    """Subclasses count in `tf_recorder`, which hears nothing without `--enable-metrics`."""

    tf_recorder: Recorder

    def init_metrics_collector(self) -> None:
        """Add our metrics to SGLang's."""
        super().init_metrics_collector()
        self.tf_recorder = Recorder()
        if self.metrics_collector_context.current_scheduler_metrics_enabled:
            self.tf_recorder = PrometheusRecorder(self.metrics_collector.labels)

    def get_init_info(self) -> dict[str, Any]:
        """Say that this scheduler is ours, now that all of it is built."""
        return {**super().get_init_info(), **announcement(type(self))}
