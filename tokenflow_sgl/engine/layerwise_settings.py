"""What `--tokenflow-layerwise` asks for, as it rides on SGLang's ServerArgs."""

from __future__ import annotations

from dataclasses import dataclass

from tokenflow_sgl.engine.sglang.server import ServerArgs
from tokenflow_sgl.policy import ConfigError

LAYERWISE_ATTRIBUTE = "_tokenflow_layerwise"
"""Underscore attribute of SGLang's ServerArgs that carries the settings; see `engine.config`."""
LAYERWISE_ATTENTION = "tokenflow_layerwise"
"""Our attention backend in SGLang's registry."""
NO_LAYERS = "off"
"""The planner of a server that does not place layers."""
USUAL_RATIO, WIDEST_RATIO = 2.0, 1024.0
"""Of tokens on both sides to those on the device, where none is given, and at most."""


@dataclass(frozen=True, slots=True)
class LayerwiseSettings:
    """Settings of layer-wise KV, of one launch.

    Attributes:
        planner: Name of what decides; see `layer_planners`.
        ratio: KV tokens of all streams together, over those that fit the device; >= 1.0.
        attention: SGLang's attention backend that computes; None: the platform's.

    Raises:
        ConfigError: A value is outside its range.
    """

    planner: str
    ratio: float
    attention: str | None = None

    def __post_init__(self) -> None:
        if not 1.0 <= self.ratio <= WIDEST_RATIO:
            raise ConfigError(
                f"layerwise_ratio is {self.ratio!r}; allowed is 1 to {WIDEST_RATIO:g}"
            )


def layerwise_of(server_args: ServerArgs) -> LayerwiseSettings | None:
    """The settings that ride on `server_args`; None: SGLang's own memory serves."""
    settings: LayerwiseSettings | None = getattr(server_args, LAYERWISE_ATTRIBUTE, None)
    return settings
