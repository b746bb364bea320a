"""Server-argument defaults of the emulated device: what SGLang would choose on the target."""

from typing import Any

from tokenflow_sgl.lab.profiles import DeviceProfile
from tokenflow_sgl.lab.profiles.pool import chunked_prefill_size, kv_pool_tokens

_ONE = "the emulated device is one device without speculation or adapters"
_SIZES = "an emulated model's weights and KV have the types that its profile was made for"
REFUSED = {
    "tp_size": (1, _ONE),
    "dp_size": (1, _ONE),
    "pp_size": (1, _ONE),
    "speculative_algorithm": (None, _ONE),
    "enable_lora": (None, _ONE),
    "lora_paths": (None, _ONE),
    "kv_cache_dtype": ("auto", _SIZES),
    "quantization": (None, _SIZES),
}
"""Arguments that the emulated device cannot honour: the only value that it accepts, and why."""
ALONE = "fake"
"""SGLang's transfer with which a decode server serves without a prefill server."""


def apply_device_defaults(server_args: Any, profile: DeviceProfile) -> None:
    """Fill in what the user left open, for an emulated device.

    Args:
        server_args: SGLang's recorder, as in :mod:`tokenflow_sgl_emulator.defaults`.
        profile: The device.

    Raises:
        ValueError: An argument asks for what is not emulated.
        ProfileError: As `pool_tokens`.
    """
    given: dict[str, Any] = server_args._raw_input
    for name, (allowed, why) in REFUSED.items():
        value = given.get(name)
        if value != allowed and value:
            raise ValueError(
                f"--{name.replace('_', '-')} is {value!r}: {why}; allowed is {allowed!r}"
            )
    mode, transfer = given["disaggregation_mode"], given["disaggregation_transfer_backend"]
    if mode == "prefill" or (mode == "decode" and transfer != ALONE):
        raise ValueError(
            f"--disaggregation-mode is {mode!r}: {_ONE}, and no pair of two; allowed is 'null', "
            f"and 'decode' with --disaggregation-transfer-backend {ALONE}"
        )
    if given["load_format"] == "auto":
        server_args.load_format = "dummy"
    if given["dtype"] == "auto":
        server_args.dtype = "bfloat16"
    tokens = pool_tokens(profile, given["max_total_tokens"], given["mem_fraction_static"])
    if tokens != given["max_total_tokens"]:
        server_args.max_total_tokens = tokens
    if given["chunked_prefill_size"] is None:
        server_args.chunked_prefill_size = chunked_prefill_size(profile.device_memory)


def pool_tokens(
    profile: DeviceProfile, max_total_tokens: int | None, mem_fraction_static: float | None
) -> int:
    """KV tokens of the emulated device's pool.

    Args:
        profile: The device.
        max_total_tokens: As given to SGLang; None: not given. Without a fraction it may be more
            than the device has memory for.
        mem_fraction_static: Share of the device's memory for weights and pool; None: not given.

    Raises:
        ProfileError: The fraction is none, or the weights do not fit into it.
    """
    if mem_fraction_static is None:
        return profile.kv_pool_tokens if max_total_tokens is None else max_total_tokens
    tokens = kv_pool_tokens(
        profile.device_memory,
        profile.weight_bytes,
        profile.kv_bytes_per_token,
        fraction=mem_fraction_static,
    )
    return tokens if max_total_tokens is None else min(tokens, max_total_tokens)
