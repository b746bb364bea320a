"""KV layer by layer beside a scheduler, ours or SGLang's own: `--tokenflow-layerwise`."""

from __future__ import annotations

from tokenflow_sgl.engine.config import config_of
from tokenflow_sgl.engine.extension import Extension, Host
from tokenflow_sgl.engine.layerwise.layer_report import LayerReport
from tokenflow_sgl.engine.layerwise.layerwise_hooks import register_layerwise
from tokenflow_sgl.engine.layerwise_settings import layerwise_of
from tokenflow_sgl.engine.sglang.batch import NextPlan
from tokenflow_sgl.engine.sglang.server import ServerArgs


class LayersBeside(Extension):
    """Reports what is moved; where layers lie is the pool's own business.

    Args:
        report: Of the server's executor.
    """

    def __init__(self, report: LayerReport) -> None:
        self._report = report

    def launched(self, plan: NextPlan) -> None:
        """Say what was moved since the last look."""
        self._report.look()


def register(server_args: ServerArgs) -> None:
    """Declare its hooks; without our scheduler it lets prompts wait that cost more than they give.

    Raises:
        UnsupportedError: It does not work on this device, or not with these options there.
    """
    settings = layerwise_of(server_args)
    assert settings is not None
    register_layerwise(settings, admits=config_of(server_args) is None)


def build(host: Host) -> LayersBeside:
    """It, beside a scheduler that has its memory."""
    scheduler = host.scheduler
    executor = scheduler.token_to_kv_pool_allocator.get_kvcache().executor
    return LayersBeside(LayerReport(executor, int(scheduler.page_size), host.recorder))
