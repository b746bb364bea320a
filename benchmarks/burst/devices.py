"""The devices of the benchmarks, as the simulator takes them."""

from __future__ import annotations

import dataclasses

from suite import CONTENDERS, MODEL

from tokenflow_sgl.lab.profiles import DeviceProfile, Link, load_profile
from tokenflow_sgl.lab.profiles.pool import chunked_prefill_size
from tokenflow_sgl.lab.sim import EngineOptions

_OPTIONS = CONTENDERS["tokenflow"]
HOST = float(_OPTIONS[_OPTIONS.index("--hicache-ratio") + 1])
"""KV tokens on the host per one on the device."""


def device_profile(device: str, link: float | None = None, model: str = MODEL) -> DeviceProfile:
    """A device's profile.

    link: GB/s each way between device and host, instead of the device's own.
    """
    profile = load_profile(device, model)
    if link is None:
        return profile
    ways = Link(link * 1e9, profile.host_to_device.latency)
    return dataclasses.replace(profile, host_to_device=ways, device_to_host=ways)


def simulated_device(
    device: str,
    kv_tokens: int,
    link: float | None = None,
    page_size: int = 1,
    model: str = MODEL,
) -> tuple[DeviceProfile, EngineOptions]:
    """A device with so many KV tokens, and SGLang's settings on it; `link` as above."""
    profile = device_profile(device, link, model)
    options = EngineOptions(
        max_total_tokens=kv_tokens,
        host_tokens=int(HOST * kv_tokens),
        chunked_prefill_size=chunked_prefill_size(profile.device_memory),
        page_size=page_size,
    )
    return profile, options
