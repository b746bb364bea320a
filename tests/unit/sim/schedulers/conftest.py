"""The engine's state with requests in its queue."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tokenflow_sgl.lab.sim.core import SimulatedCore
from tokenflow_sgl.lab.sim.prefixes import Prefixes
from tokenflow_sgl.lab.sim.simulated_streams import SimulatedStreams
from tokenflow_sgl.lab.sim.step import SimulatedDevice
from tokenflow_sgl.lab.traces import TraceRequest


@pytest.fixture
def queued(device, options) -> Callable[..., SimulatedCore]:
    """The engine when these requests have come and nothing runs yet; keywords are its settings."""

    def make(*requests: TraceRequest, **given: object) -> SimulatedCore:
        core = SimulatedCore(
            SimulatedStreams(requests),
            Prefixes(requests, {}),
            SimulatedDevice(device),
            options(**given),
        )
        for index, request in enumerate(requests):
            core.arrive(index, request.arrival_s, request.arrival_s)
        return core

    return make
