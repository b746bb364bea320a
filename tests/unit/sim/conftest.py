"""Small devices and traces for the simulator's tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tokenflow_sgl.lab.profiles import DecodeTable, DeviceProfile, Link, PrefillTable
from tokenflow_sgl.lab.sim import EngineOptions, Simulation
from tokenflow_sgl.lab.traces import Accounting, Trace, TraceRequest

STEP = 0.01
"""Seconds of a decode step, whatever it reads."""
PER_TOKEN = 0.001
"""Seconds per prefilled token."""
KV_BYTES = 1000
BANDWIDTH = 1e7
"""Bytes per second of both links: a token takes a tenth of a millisecond."""


@pytest.fixture(scope="session")
def device() -> DeviceProfile:
    """A device whose times can be worked out in the head."""
    step, per_token = STEP, PER_TOKEN
    return DeviceProfile(
        device="toy",
        model="toy",
        source="made up",
        layers=10,
        kv_bytes_per_token=KV_BYTES,
        device_memory=1 << 34,
        weight_bytes=1,
        kv_pool_tokens=1000,
        host_pool_tokens=2000,
        host_to_device=Link(BANDWIDTH, 0.0),
        device_to_host=Link(BANDWIDTH, 0.0),
        decode=DecodeTable((1.0, 1000.0), (1.0, 1e6), ((step, step), (step, step))),
        prefill=PrefillTable(
            (1.0, 100_000.0),
            (1.0, 1e6),
            ((per_token, per_token), (1e5 * per_token, 1e5 * per_token)),
        ),
    )


@pytest.fixture(scope="session")
def trace() -> Callable[..., Trace]:
    """A trace of (arrival, prompt, output) or (arrival, prompt, output, rate)."""

    def make(*rows: tuple[float, ...]) -> Trace:
        requests = tuple(
            TraceRequest(row[0], int(row[1]), int(row[2]), rate=row[3] if len(row) > 3 else 10.0)
            for row in rows
        )
        return Trace("toy", requests, Accounting(len(rows), len(rows)))

    return make


@pytest.fixture(scope="session")
def options() -> Callable[..., EngineOptions]:
    """Settings of the engine; 1,000 KV tokens."""

    def make(**given: object) -> EngineOptions:
        return EngineOptions(**{"max_total_tokens": 1000, **given})  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def times_of() -> Callable[[Simulation], dict[int, list[float]]]:
    """Token times by request."""

    def read(simulation: Simulation) -> dict[int, list[float]]:
        tokens = simulation.run.tokens.to_pydict()
        found: dict[int, list[float]] = {}
        for request, time in zip(tokens["request"], tokens["time_s"], strict=True):
            found.setdefault(request, []).append(time)
        return found

    return read
