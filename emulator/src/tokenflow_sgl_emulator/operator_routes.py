"""What operators' HTTP routes ask of the device where SGLang asks CUDA: the server would end."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

ACTIVITIES = ({"CPU"}, {"CPU", "GPU"})
"""What `/start_profile` can record. The latter is SGLang's default; it records the same here."""


def device_module(original: Callable[[Any], ModuleType], device: Any = None) -> ModuleType:
    """Around hook of `torch.get_device_module`: without a device it is that of this platform.

    It would be CUDA's where PyTorch was built for it, and /release_memory_occupation waits for it.
    """
    return original("cpu" if device is None else device)


def profile(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Around hook of what serves /start_profile and /stop_profile: refuses what is CUDA's own."""
    from sglang.srt.managers.io_struct import ProfileReqOutput

    asked = request.activities
    if asked is not None and {*asked} not in ACTIVITIES:
        said = f"activities is {asked!r}; allowed on an emulated device is CPU, or CPU and GPU"
        return ProfileReqOutput(success=False, message=said)
    return original(manager, request)
