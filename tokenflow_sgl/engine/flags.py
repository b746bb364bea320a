"""`--scheduler tokenflow` and `--tokenflow-*`: generated from the settings that have a flag."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import secrets
from collections.abc import Callable
from typing import Any

from tokenflow_sgl.engine.config import (
    ATTRIBUTE,
    LAUNCH_ATTRIBUTE,
    NO_PLANNER,
    OFF_ATTRIBUTE,
    PREFIX,
    RESTORE_ATTRIBUTE,
    TENANT_ATTRIBUTE,
    TokenFlowConfig,
    build,
    flag_settings,
    tuned_text,
)
from tokenflow_sgl.engine.layerwise_settings import (
    LAYERWISE_ATTENTION,
    LAYERWISE_ATTRIBUTE,
    NO_LAYERS,
    USUAL_RATIO,
    LayerwiseSettings,
)
from tokenflow_sgl.engine.lengths_file import attach_lengths
from tokenflow_sgl.engine.moved_flags import CHECK_RANKS_VARIABLE, declare_moved, flag_of
from tokenflow_sgl.engine.sglang.release import WORKERS_SERVE_OURS
from tokenflow_sgl.engine.sglang.seam import UNPROVED_VARIABLE
from tokenflow_sgl.engine.sglang.server import ServerArgs
from tokenflow_sgl.engine.tenant_setting import TENANTS_OFF
from tokenflow_sgl.engine.unsupported import (
    NO_STREAMS,
    check_contiguity,
    check_options,
    check_restore,
    check_scheduled_layers,
    decodes_only,
    has_no_streams,
    has_workers,
)
from tokenflow_sgl.engine.unsupported_front_ends import (
    OFF_IN_RUST,
    RUST,
    check_app,
    check_deposits,
    check_refusals,
    check_rust,
    check_tenants,
    in_rust,
)
from tokenflow_sgl.policy import ConfigError, make_policy, make_predictor

logger = logging.getLogger(__name__)

SCHEDULERS = ("default", "tokenflow")
SWITCHES = ("restore", "layerwise")
"""Settings that do something with SGLang's own scheduler, too."""
APP_VARIABLE = "SGLANG_HTTP_SERVER_APP_PATH"
"""Where SGLang's tokenizer workers find the application that they serve."""
WORKER_APP = "tokenflow_sgl.engine.worker_app:app"


class _Switch(argparse.Action):
    """Stores a value, and asks first whether what reads it is in place."""

    def __init__(self, *args: Any, check: Callable[[], None], **more: Any) -> None:
        super().__init__(*args, **more)
        self._check = check

    def __call__(
        self, _parser: Any, namespace: argparse.Namespace, values: Any, _option: Any = None
    ) -> None:
        self._check()
        setattr(namespace, self.dest, values)


def add_arguments(
    parser: argparse.ArgumentParser, check: Callable[[], None] = lambda: None
) -> None:
    """Declare our flags on SGLang's parser.

    check: Called where one is given that switches something on, before it counts.
    """
    group = parser.add_argument_group(
        "tokenflow", "Buffer-aware preemptive scheduling (tokenflow-sgl)"
    )
    switch: dict[str, Any] = {"action": _Switch, "check": check}
    group.add_argument(
        "--scheduler",
        **switch,
        choices=SCHEDULERS,
        default="default",
        help="tokenflow: the buffer-aware preemptive scheduler; default: SGLang's own.",
    )
    for name, item in flag_settings().items():
        group.add_argument(
            flag_of(name),
            # None tells "not given" from a value: only given values reach the record.
            default=None,
            **switch if name in SWITCHES else {},
            **_argument(item),
        )
    declare_moved(group)


def _argument(item: dataclasses.Field[Any]) -> dict[str, Any]:
    """Argparse keywords of one setting."""
    default, text = item.default, item.metadata["help"].replace("%", "%%")
    text = f"{text} (default: {default})."
    if isinstance(default, bool):
        return {"action": argparse.BooleanOptionalAction, "help": text}
    if item.metadata["words"]:
        return {"choices": item.metadata["words"], "help": text}
    return {"type": type(default), "metavar": type(default).__name__.upper(), "help": text}


def config_from(namespace: argparse.Namespace) -> TokenFlowConfig | None:
    """The configuration that the parsed flags ask for; None with the default scheduler.

    Raises `ConfigError` for a value out of range and for a tuning file that cannot be used.
    """
    if getattr(namespace, "scheduler", "default") != "tokenflow":
        return None
    values = {name: getattr(namespace, PREFIX + name, None) for name in flag_settings()}
    return configured({name: value for name, value in values.items() if value is not None})


def configured(given: dict[str, Any]) -> TokenFlowConfig:
    """The configuration of these settings, of their tuning file, and of the environment.

    Raises `ConfigError` for a value out of range and for a tuning file that cannot be used.
    """
    said = os.environ.get(CHECK_RANKS_VARIABLE, "") or "0"
    if said not in ("0", "1"):
        raise ConfigError(f"{CHECK_RANKS_VARIABLE} is {said!r}; allowed is 0 or 1")
    return build(given, check_ranks=said == "1")


def planner_from(namespace: argparse.Namespace) -> str:
    """The planner of restorations that the parsed flags ask for; NO_PLANNER: none."""
    return getattr(namespace, PREFIX + "restore", None) or NO_PLANNER


def attach_restore(server_args: ServerArgs, planner: str) -> None:
    """Switch restorations on for `server_args` (a record that is not resolved yet).

    Raises `UnsupportedError` for options that exclude them, and `ConfigError` for a planner that
    cannot be loaded.
    """
    from tokenflow_sgl.engine.restore.planners import make_planner  # not in a plain server

    check_restore(server_args)
    make_planner(planner)
    setattr(server_args, RESTORE_ATTRIBUTE, planner)


def layers_of(planner: str | None, ratio: float | None) -> LayerwiseSettings | None:
    """What is asked for of KV layer by layer, from settings or None; None: nothing.

    Raises `ConfigError` for a value out of range.
    """
    if planner is None or planner == NO_LAYERS:
        return None
    return LayerwiseSettings(planner, USUAL_RATIO if ratio is None else ratio)


def layers_from(namespace: argparse.Namespace) -> LayerwiseSettings | None:
    """Settings of layer-wise KV, from parsed flags."""
    names = "layerwise", "layerwise_ratio"
    planner, ratio = (getattr(namespace, PREFIX + name, None) for name in names)
    return layers_of(planner, ratio)


def attach_layers(server_args: ServerArgs, settings: LayerwiseSettings) -> None:
    """Place KV layer by layer in the server of `server_args` (a record that is not resolved yet).

    Raises `UnsupportedError` for options that exclude it, and `ConfigError` for a planner that
    cannot be loaded.
    """
    # Not in a plain server.
    from tokenflow_sgl.engine.layerwise.layer_planners import make_layer_planner
    from tokenflow_sgl.engine.layerwise.layerwise_refusals import check_layerwise

    check_layerwise(server_args)
    make_layer_planner(settings.planner)
    given = dataclasses.replace(settings, attention=server_args.attention_backend)
    setattr(server_args, LAYERWISE_ATTRIBUTE, given)
    server_args.attention_backend = LAYERWISE_ATTENTION


def _keep_on_host(server_args: ServerArgs) -> None:
    """Let the host have room for KV of paused streams."""
    # Its size: --hicache-ratio, --hicache-size, or what the machine has (`kv.host_size`).
    if not decodes_only(server_args):
        server_args.enable_hierarchical_cache = True


def attach(server_args: ServerArgs, config: TokenFlowConfig) -> None:
    """Switch the scheduler on for `server_args` (a record that is not resolved yet).

    Nothing is switched on for the prefill server of a disaggregated pair: no stream stays there,
    so there is none to schedule, and the pair can be started with the same flags.

    Raises `UnsupportedError` for options that exclude it and `ConfigError` for a policy, a
    predictor of lengths or a file of learned ones that cannot be loaded.
    """
    if config.unproved_sglang:
        os.environ[UNPROVED_VARIABLE] = "1"  # processes that this one starts have it, too
    if has_no_streams(server_args):
        logger.info("tokenflow scheduler is off: %s", NO_STREAMS)
        setattr(server_args, OFF_ATTRIBUTE, NO_STREAMS)
        return
    layers = layers_of(config.layerwise, config.layerwise_ratio)
    check_options(server_args, layers=layers is not None)
    check_scheduled_layers(config)
    check_contiguity(server_args, config)
    check_app(server_args, os.environ.get(APP_VARIABLE), WORKER_APP if WORKERS_SERVE_OURS else None)
    check_rust()
    check_deposits(server_args, config)
    check_refusals(server_args, config)
    check_tenants(server_args, config)
    make_policy(config.policy, config.working_set)
    make_predictor(config.lengths)
    if config.lengths_file:
        attach_lengths(server_args, config.lengths_file)
    setattr(server_args, ATTRIBUTE, config)
    if config.tuning:
        said = tuned_text(config) or "all as shipped"
        logger.info("tokenflow tuning (%s): %s", config.tuning, said)
    if in_rust():
        logger.info("tokenflow with %s: %s", RUST, OFF_IN_RUST)
    elif has_workers(server_args):
        os.environ[APP_VARIABLE] = WORKER_APP
        setattr(server_args, LAUNCH_ATTRIBUTE, secrets.token_hex(8))
    if config.tenant_by != TENANTS_OFF:
        # Of all HTTP processes of this launch, so that they hash one key alike.
        setattr(server_args, TENANT_ATTRIBUTE, secrets.token_hex(16))
    if layers is not None:
        attach_layers(server_args, layers)
    elif config.hicache == "auto":
        _keep_on_host(server_args)
    if config.restore != NO_PLANNER:
        attach_restore(server_args, config.restore)
