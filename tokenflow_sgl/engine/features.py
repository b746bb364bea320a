"""What can be switched on beside the scheduler: each by its option, each imported only then."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, cast

from sglang.srt.environ import envs

from tokenflow_sgl.engine.config import NO_PLANNER, config_of, restoring_planner
from tokenflow_sgl.engine.extension import Extension, Host
from tokenflow_sgl.engine.layerwise_settings import layerwise_of
from tokenflow_sgl.engine.sglang.server import ServerArgs


class FeatureModule(Protocol):
    """The module of an extension."""

    def register(self, server_args: ServerArgs) -> None:
        """Declare its hooks, in the scheduler's process before it builds anything."""
        ...

    def build(self, host: Host) -> Extension:
        """It, beside a scheduler that has its memory."""
        ...


@dataclass(frozen=True, slots=True)
class Feature:
    """An extension and its option.

    Attributes:
        module: Of the extension.
        is_on: Whether a record of SGLang's options asks for it.
    """

    module: str
    is_on: Callable[[Any], bool]

    def load(self) -> FeatureModule:
        """Import the module of this extension."""
        return cast(FeatureModule, importlib.import_module(self.module))


def _checks_memory(server_args: ServerArgs) -> bool:
    asked = envs.SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY.get()
    return config_of(server_args) is not None and bool(asked)


def _groups_blocks(server_args: ServerArgs) -> bool:
    config = config_of(server_args)
    return config is not None and config.block_groups


_ENGINE = "tokenflow_sgl.engine"
FEATURES = (
    # Layers come first: the hooks of others find SGLang's memory as it is then.
    Feature(f"{_ENGINE}.layerwise.layers_extension", lambda args: layerwise_of(args) is not None),
    Feature(f"{_ENGINE}.kv.group_hooks", _groups_blocks),
    Feature(
        f"{_ENGINE}.restore.restore_extension", lambda args: restoring_planner(args) != NO_PLANNER
    ),
    Feature(f"{_ENGINE}.kv.memory_ledger", _checks_memory),
)
"""All there are, in the order in which they are built."""


def features_on(server_args: ServerArgs) -> Iterator[FeatureModule]:
    """The modules of those that the options switch on."""
    for feature in FEATURES:
        if feature.is_on(server_args):
            yield feature.load()
