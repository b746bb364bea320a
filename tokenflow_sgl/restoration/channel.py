"""Where stored KV comes from: one queue and one rate, the host's link or that of the storage."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Channel:
    """One way to the device, as measured by now.

    Attributes:
        name: What it is called in reasons and metrics: "host", "storage".
        rate: KV tokens per second, >= 0.0; 0.0: nothing comes any more.
        latency: Seconds between asking and the first token, >= 0.0.
        queued: Tokens that were asked for before, >= 0.
        beside: A load goes on beside the step that needs it, layer by layer, as HiCache's from the
            host does. Else the step starts when all of it has landed, as from the storage.

    Raises:
        ValueError: A value is outside its range.
    """

    name: str
    rate: float
    latency: float = 0.0
    queued: int = 0
    beside: bool = False

    def __post_init__(self) -> None:
        for field in ("rate", "latency", "queued"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{self.name}: {field} is {value!r}; allowed is 0 or more")

    def seconds(self, tokens: int) -> float:
        """Until so many have arrived: behind what is queued; infinite where nothing comes."""
        if tokens <= 0:
            return 0.0
        if self.rate == 0.0:
            return math.inf
        return self.latency + (self.queued + tokens) / self.rate
