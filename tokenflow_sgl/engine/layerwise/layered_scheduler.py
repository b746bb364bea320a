"""SGLang's own scheduler where KV is placed layer by layer: it only reports what is moved."""

from __future__ import annotations

from typing import Any

from tokenflow_sgl.engine.layerwise.layer_report import LayerReport
from tokenflow_sgl.engine.telemetry.recording_scheduler import RecordingScheduler


class LayeredScheduler(RecordingScheduler):
    """What `--tokenflow-layerwise` puts in place without `--scheduler tokenflow`."""

    def init_schedule_policy(self) -> None:
        """Build what reports."""
        super().init_schedule_policy()
        executor = self.token_to_kv_pool_allocator.get_kvcache().executor
        self.tf_layer_report = LayerReport(executor, int(self.page_size), self.tf_recorder)

    def get_next_batch_to_run(self, running_batch: Any, last_batch: Any) -> Any:
        """Report."""
        self.tf_layer_report.look()
        return super().get_next_batch_to_run(running_batch, last_batch)
