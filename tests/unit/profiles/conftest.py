from __future__ import annotations

import pytest

from tokenflow_sgl.lab.profiles import DecodeTable, DeviceProfile, Link, PrefillTable


@pytest.fixture
def small() -> DeviceProfile:
    """Times that can be worked out by hand: decode 10 ms + 1 ms a row + 0.1 ms per row and token;
    prefill 20 ms + 2 ms a token + 0.5 ms per token and key."""
    batch, context = (1.0, 4.0), (1.0, 10.0)
    tokens, attended = (1.0, 100.0), (1.0, 50.0)
    return DeviceProfile(
        device="toy",
        model="tiny",
        source="by hand",
        layers=2,
        kv_bytes_per_token=1000,
        device_memory=10**9,
        weight_bytes=10**8,
        kv_pool_tokens=5000,
        host_pool_tokens=10000,
        host_to_device=Link(bandwidth=1e9, latency=1e-3),
        device_to_host=Link(bandwidth=5e8, latency=2e-3),
        decode=DecodeTable(
            batch,
            context,
            tuple(tuple(0.010 + 0.001 * b + 0.0001 * b * c for c in context) for b in batch),
        ),
        prefill=PrefillTable(
            tokens,
            attended,
            tuple(tuple(0.020 + 0.002 * n + 0.0005 * n * c for c in attended) for n in tokens),
        ),
    )
