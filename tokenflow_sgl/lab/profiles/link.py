"""One direction of the connection between host and device memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tokenflow_sgl.lab.profiles.document import ProfileError


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of the connection between host and device memory.

    Attributes:
        bandwidth: Bytes per second that large copies reach, > 0.
        latency: Seconds per transfer before the first byte, >= 0.

    Raises:
        ProfileError: A value is outside its range.
    """

    bandwidth: float
    latency: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bandwidth) and self.bandwidth > 0.0):
            raise ProfileError(f"link: bandwidth is {self.bandwidth!r}; allowed is above 0.")
        if not (math.isfinite(self.latency) and self.latency >= 0.0):
            raise ProfileError(f"link: latency is {self.latency!r}; allowed is 0 or more.")

    def seconds(self, n_bytes: float) -> float:
        """Time of one transfer of `n_bytes`."""
        return self.latency + n_bytes / self.bandwidth
