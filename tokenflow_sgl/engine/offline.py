"""`tokenflow_sgl.Engine`: SGLang's offline engine with the scheduler switched on."""

from __future__ import annotations

from typing import Any

from sglang.srt.entrypoints.engine import Engine as SGLangEngine
from sglang.srt.plugins import load_plugins

from tokenflow_sgl.engine.config import NO_PLANNER, PREFIX, config_of
from tokenflow_sgl.engine.flags import (
    SCHEDULERS,
    attach,
    attach_layers,
    attach_restore,
    configured,
    layers_of,
)
from tokenflow_sgl.engine.moved_flags import check_keywords
from tokenflow_sgl.engine.plugin import activate_front_end, activate_launch
from tokenflow_sgl.engine.sglang.overriding import checked, overrides
from tokenflow_sgl.policy import ConfigError


@checked
class Engine(SGLangEngine):  # type: ignore[misc]
    """`sglang.Engine` that also takes `scheduler` and `tokenflow_*` keywords.

    scheduler: "default" or "tokenflow". Every `--tokenflow-*` flag is a keyword of the
    same name, e.g. `tokenflow_eta=0.8` or `tokenflow_tuning="own.toml"`; with "default" only
    `tokenflow_restore`, `tokenflow_layerwise` and `tokenflow_layerwise_ratio`. Everything else
    goes to SGLang's ServerArgs.

    Raises `ConfigError` for a bad value and `UnsupportedError` for options that exclude
    the scheduler.
    """

    @overrides("takes the scheduler's options as keywords")
    def __init__(self, *, scheduler: str = "default", **kwargs: Any) -> None:
        if scheduler not in SCHEDULERS:
            raise ConfigError(f"scheduler is {scheduler!r}; allowed is {' or '.join(SCHEDULERS)}")
        ours = {
            name.removeprefix(PREFIX): kwargs.pop(name)
            for name in list(kwargs)
            if name.startswith(PREFIX)
        }
        check_keywords(ours)
        planner, layers = NO_PLANNER, None
        if scheduler == "default":
            planner = ours.pop("restore", NO_PLANNER)
            layers = layers_of(ours.pop("layerwise", None), ours.pop("layerwise_ratio", None))
            if ours:
                raise ConfigError(
                    f"{PREFIX}{min(ours)} is set, but scheduler is 'default'; "
                    "add scheduler='tokenflow' or leave it out"
                )
            if planner == NO_PLANNER and layers is None:
                super().__init__(**kwargs)
                return
        load_plugins()
        server_args = kwargs.pop("server_args", None)
        if server_args is None:
            kwargs.setdefault("log_level", "error")
            server_args = self.server_args_class(**kwargs)
        elif kwargs:
            raise TypeError(f"server_args is given; {min(kwargs)} must be set on it")
        if scheduler != "default":
            attach(server_args, configured(ours))
            if config_of(server_args) is not None:
                activate_front_end()
        if planner != NO_PLANNER:
            attach_restore(server_args, planner)
        if layers is not None:
            attach_layers(server_args, layers)
        if planner != NO_PLANNER or layers is not None:
            activate_launch()
        super().__init__(server_args=server_args)
