"""How many times the device's KV the host's pool holds, where no option says so."""

HOST_RATIO = 2.0
"""Tokens of the host's pool over the device's: SGLang's default for ``--hicache-ratio``."""
MOST_RATIO = 4.0
"""The same where there is memory for it: more was of no use to any load that was simulated."""
GB = 1e9
MOST_BYTES = 128 * GB
"""Bytes of a rank up to which it is more than the default: it is allocated before the start ends,
at 2 s for each GB on the test machine, and devices with as much KV gain little.
"""


def raised_ratio(device_bytes: float, most_bytes: float = MOST_BYTES) -> float:
    """The ratio to aim at: the default, and more as far as a rank's pool stays small.

    Args:
        device_bytes: Of KV on the rank's device.
        most_bytes: Of the rank's pool on the host, where it is above the default.
    """
    within = min(most_bytes, MOST_BYTES) / max(1.0, device_bytes)
    return max(HOST_RATIO, min(MOST_RATIO, within))
