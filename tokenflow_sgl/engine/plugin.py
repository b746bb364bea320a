"""The entry point that SGLang calls in each of its processes.

Without `--scheduler tokenflow` it declares the flags and replaces nothing.
"""

from __future__ import annotations

import argparse
import logging
import sys
from typing import Any

from sglang.srt.plugins.hook_registry import HookType

from tokenflow_sgl.engine.announcement import CONTROLLER, hold_launch, hold_replicas
from tokenflow_sgl.engine.config import (
    COMMAND_ATTRIBUTE,
    NO_PLANNER,
    config_of,
    restoring_planner,
)
from tokenflow_sgl.engine.features import features_on
from tokenflow_sgl.engine.flags import (
    add_arguments,
    attach,
    attach_layers,
    attach_restore,
    config_from,
    layers_from,
    planner_from,
)
from tokenflow_sgl.engine.judging import is_judged
from tokenflow_sgl.engine.layerwise_settings import layerwise_of
from tokenflow_sgl.engine.refusal import UnsupportedError
from tokenflow_sgl.engine.sglang.hooking import (
    check_in_place,
    check_rivals,
    hold,
    put_in_place,
    standing,
)
from tokenflow_sgl.engine.sglang.overriding import check_overrides
from tokenflow_sgl.engine.sglang.release import hold_server_info
from tokenflow_sgl.engine.sglang.seam_check import SeamError, check_seams
from tokenflow_sgl.engine.sglang.server import ServerArgs
from tokenflow_sgl.engine.unsupported_front_ends import in_rust
from tokenflow_sgl.policy import ConfigError

logger = logging.getLogger(__name__)

_SERVER_ARGS = "sglang.srt.server_args:ServerArgs"
_SCHEDULER_MODULE = "sglang.srt.managers.scheduler"
_SCHEDULER = f"{_SCHEDULER_MODULE}:Scheduler"
_MANAGER = "sglang.srt.managers.tokenizer_manager:TokenizerManager"
_DECODER = "sglang.srt.managers.load_snapshot:snapshot_decoder"
_OPENAI = "sglang.srt.entrypoints.openai"
_OWNED_KV = "sglang.srt.managers.schedule_batch:Req.owned_kv_len"


def register() -> None:
    """Declare the hooks. SGLang applies them right after, and swallows exceptions here."""
    hold(
        f"{_SERVER_ARGS}.add_cli_args",
        _after_add_cli_args,
        HookType.AFTER,
        "declares the flags",
        ("parser",),
    )
    hold(
        f"{_SERVER_ARGS}.from_cli_args",
        _after_from_cli_args,
        HookType.AFTER,
        "puts the configuration on the record",
        ("args",),
    )
    # Processes that never import the scheduler (the detokenizer) are spared its import.
    if _SCHEDULER_MODULE in sys.modules:
        hold(
            f"{_SCHEDULER_MODULE}:configure_scheduler_process",
            _before_configure_scheduler,
            HookType.BEFORE,
            "replaces the scheduler class, in its process and only with the flag",
            ("server_args",),
        )
    if CONTROLLER in sys.modules:
        hold_replicas()


def _after_add_cli_args(_result: None, parser: argparse.ArgumentParser) -> None:
    add_arguments(parser, check_launch)


def check_launch() -> None:
    """Before any of our options is read: they are read in a hook, which may have been kept out."""
    try:
        check_in_place()
    except SeamError as error:
        raise SystemExit(f"tokenflow: {error}") from None


def _after_from_cli_args(result: Any, _cls: type, args: argparse.Namespace) -> Any:
    try:
        config = config_from(args)
        if config is not None:
            attach(result, config)
            if config_of(result) is not None:
                activate_front_end()
        else:
            planner, layers = planner_from(args), layers_from(args)
            if planner != NO_PLANNER:
                attach_restore(result, planner)
            if layers is not None:
                attach_layers(result, layers)
            if planner != NO_PLANNER or layers is not None:
                activate_launch()
        setattr(result, COMMAND_ATTRIBUTE, True)
    except (ConfigError, UnsupportedError, SeamError) as error:
        raise SystemExit(f"tokenflow: {error}") from None
    return result


def activate_launch() -> None:
    """In the process that launches schedulers: it goes on with ours only."""
    if is_judged():
        return check_rivals((_SCHEDULER,))
    check_seams()
    standing(_SCHEDULER, "sglang.")  # plugins are the same here as in the scheduler's process
    hold_launch()
    put_in_place()


def activate_front_end() -> None:
    """In the process of the HTTP server or the offline engine.

    Bad rates are refused there, the loads of the schedulers are read, text that is held back is
    noticed, the rates of live streams can be changed, token deposits deliver evenly, and what waits
    for streams to end is told to the scheduler. SGLang's front end in Rust has none of that.
    """
    if in_rust():
        return activate_launch()
    if is_judged():
        return check_rivals((_SCHEDULER, _DECODER))
    check_seams()  # before anything is imported that another SGLang may lack
    from sglang.srt.entrypoints import http_server

    from tokenflow_sgl.engine.frontend.stream_route import add_routes
    from tokenflow_sgl.engine.frontend.untold_routes import HANDLERS, refuse_terms
    from tokenflow_sgl.engine.telemetry.loads import LoadDecoder

    hold(_DECODER, LoadDecoder, HookType.REPLACE, "headroom in /v1/loads, where it is read")
    _hold_requests()
    _hold_ends()
    for handler in HANDLERS:
        hold(
            handler,
            refuse_terms,
            HookType.AROUND,
            "answers a rate with HTTP 400 where SGLang would drop it",
            ("request", "raw_request"),
        )
    activate_launch()
    add_routes(http_server.app)


def _hold_requests() -> None:
    """Declare the hooks on what a request says, and on what is sent to it."""
    from tokenflow_sgl.engine.frontend.held_text import watch_chat, watch_generate
    from tokenflow_sgl.engine.frontend.token_deposit import deliver_evenly
    from tokenflow_sgl.engine.frontend.validate import check_generate, check_http, check_openai

    hold(
        f"{_MANAGER}.generate_request",
        check_generate,
        HookType.BEFORE,
        "answers a bad rate with HTTP 400",
        ("obj",),
    )
    hold(
        f"{_MANAGER}.generate_request",
        watch_generate,
        HookType.AROUND,
        "notices text that is held back",
        ("obj",),
    )
    hold(
        f"{_MANAGER}._wait_one_response",
        deliver_evenly,
        HookType.AROUND,
        "delivers a stream from its token deposit",
        ("obj",),
    )
    hold(
        f"{_OPENAI}.serving_chat:OpenAIServingChat._generate_chat_stream",
        watch_chat,
        HookType.AROUND,
        "notices text that parsers of tool calls hold back",
        ("adapted_request",),
    )
    hold(
        "sglang.srt.entrypoints.http_server:serve_generate_request",
        check_http,
        HookType.AROUND,
        "a bad rate on a /generate stream is answered before its HTTP 200; objectives in headers",
        ("obj", "request"),
    )
    hold(
        f"{_OPENAI}.serving_base:OpenAIServingBase.handle_request",
        check_openai,
        HookType.AROUND,
        "a rate outside of custom_params is answered with HTTP 400; objectives in headers",
        ("request", "raw_request"),
    )


def _hold_ends() -> None:
    """Declare the hooks on what waits for streams to end."""
    from tokenflow_sgl.engine.frontend.end_watch import adapter_ends, new_weights, server_ends

    hold(
        "sglang.srt.managers.tokenizer_manager:SignalHandler.sigterm_handler",
        server_ends,
        HookType.AFTER,
        "ends rests: the server waits for all streams before it ends",
        ("self",),
    )
    hold(
        "sglang.srt.utils.aio_rwlock:RWLock.acquire_writer",
        new_weights,
        HookType.AROUND,
        "ends rests: new weights wait for all streams, and newcomers for them",
        ("self",),
    )
    hold(
        "sglang.srt.lora.lora_registry:LoRARegistry.wait_for_unload",
        adapter_ends,
        HookType.AROUND,
        "ends rests: an adapter is unloaded when no stream uses it any more",
        ("lora_id",),
    )


def _before_configure_scheduler(server_args: ServerArgs, *_args: Any, **_kwargs: Any) -> None:
    """In the scheduler's process, before it builds one: put our classes in place."""
    config, planner = config_of(server_args), restoring_planner(server_args)
    layers = layerwise_of(server_args)
    if config is None and planner == NO_PLANNER and layers is None:
        return
    check_seams()
    features = list(features_on(server_args))
    standing(_SCHEDULER, "sglang.")
    scheduler = _scheduler(policed=config is not None)
    check_overrides(scheduler)
    hold(_SCHEDULER, scheduler, HookType.REPLACE, "the policy at SGLang's decision point")
    if config is not None:
        _hold_for_policy(server_args)
    for feature in features:
        feature.register(server_args)
    put_in_place()


def _hold_for_policy(server_args: ServerArgs) -> None:
    """What our scheduler needs of SGLang on some kinds of servers."""
    from tokenflow_sgl.engine.kv.state_slots import register_states

    register_states()
    if in_rust():
        from tokenflow_sgl.engine.shell import introduction

        hold_server_info(introduction)
    config = config_of(server_args)
    if config is not None and config.hicache == "auto":
        from tokenflow_sgl.engine.kv.host_size import register_sizes

        register_sizes(server_args)
    if server_args.hicache_write_policy == "write_back":
        from tokenflow_sgl.engine.kv.backups import register_backups

        register_backups()
    if server_args.disaggregation_mode == "decode":
        from tokenflow_sgl.engine.decode_server.compressed_copies import register_copies
        from tokenflow_sgl.engine.decode_server.decode_loads import register_loads

        register_copies()
        register_loads()
    if server_args.strip_thinking_cache:
        from tokenflow_sgl.engine.kv.thinking import owned_kv_len

        hold(
            _OWNED_KV,
            owned_kv_len,
            HookType.AROUND,
            "with --strip-thinking-cache, keeps what a paused stream has computed",
        )


def _scheduler(*, policed: bool) -> type:
    if policed:
        from tokenflow_sgl.engine.shell import TokenFlowScheduler

        return TokenFlowScheduler
    from tokenflow_sgl.engine.extended import ExtendedScheduler

    return ExtendedScheduler
