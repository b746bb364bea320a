"""Server-argument defaults of the emulated device: what SGLang would choose on the target."""

from typing import Any

from tokenflow_sgl.profiles import DeviceProfile
from tokenflow_sgl.profiles.pool import chunked_prefill_size

REFUSED = {
    "tp_size": 1,
    "dp_size": 1,
    "pp_size": 1,
    "speculative_algorithm": None,
    "enable_lora": None,
    "disaggregation_mode": "null",
}
"""Arguments that the emulated device cannot honour, with the only value that it accepts."""


def apply_device_defaults(server_args: Any, profile: DeviceProfile) -> None:
    """Fill in what the user left open, for an emulated device.

    Args:
        server_args: SGLang's recorder, as in :mod:`tokenflow_sgl_emulator.defaults`.
        profile: The device.

    Raises:
        ValueError: An argument asks for what is not emulated.
    """
    given: dict[str, Any] = server_args._raw_input
    for name, allowed in REFUSED.items():
        value = given.get(name)
        if value != allowed and value:
            raise ValueError(
                f"--{name.replace('_', '-')} is {value!r}: the emulated device is one device "
                f"without speculation or adapters; allowed is {allowed!r}"
            )
    if given["load_format"] == "auto":
        server_args.load_format = "dummy"
    if given["dtype"] == "auto":
        server_args.dtype = "bfloat16"
    if given["max_total_tokens"] is None:
        server_args.max_total_tokens = profile.kv_pool_tokens
    if given["chunked_prefill_size"] is None:
        server_args.chunked_prefill_size = chunked_prefill_size(profile.device_memory)
