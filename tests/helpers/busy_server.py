"""A server's own recorder and metrics page, without the server."""

from __future__ import annotations

import numpy as np
import pytest
from prometheus_client import REGISTRY, generate_latest

from tokenflow_sgl.contract import Cause, Mode
from tokenflow_sgl.engine.telemetry.prometheus import Levels, PrometheusRecorder
from tokenflow_sgl.lab.observe import parse


@pytest.fixture
def recorder():
    """The server's own recorder; its page is what is examined."""
    before = set(REGISTRY._collector_to_names)
    yield PrometheusRecorder({"model_name": "tiny"})
    for each in set(REGISTRY._collector_to_names) - before:
        REGISTRY.unregister(each)


def page():
    """What the registry holds now."""
    return parse(generate_latest(REGISTRY).decode())


def work(recorder) -> None:
    """Two seconds of a busy server."""
    recorder.policy_pass(Mode.WORKING_SET, 0.0004)
    recorder.levels(Levels(running=12, paused=3, waiting=1, demand=240.0, capacity=300.0))
    recorder.count("output_tokens_total", 600, qos_class="reading")
    recorder.count("effective_tokens_total", 480, qos_class="reading")
    recorder.count("stalls_total", 4, qos_class="reading")
    recorder.count("stall_seconds_total", 1.0, qos_class="reading")
    recorder.observe("ttft_seconds", [0.15, 0.15], qos_class="reading")
    recorder.buffers("reading", np.array([0.0, 0.4, 2.0, 2.5, 30.0, 200.0]), stalled=1)
    recorder.preempted(Cause.EXCHANGE)
    recorder.resumed(recomputed=0, loaded=100, resident=1)
    recorder.link("store", 1e5, 64)
