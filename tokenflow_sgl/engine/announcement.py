"""Schedulers of ours say so when they are ready, and no port is opened before all have.

What SGLang's schedulers tell their parent when they are ready goes on to the process that serves
HTTP, or to the offline engine. Ours add their name. A scheduler in whose process this plugin was
not loaded, or was kept out, is SGLang's, and adds nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookType

from tokenflow_sgl.engine.config import (
    COMMAND_ATTRIBUTE,
    NO_PLANNER,
    config_of,
    restoring_planner,
)
from tokenflow_sgl.engine.layerwise_settings import layerwise_of
from tokenflow_sgl.engine.sglang.hooking import check_in_place, hold
from tokenflow_sgl.engine.sglang.release import heard, hold_controller
from tokenflow_sgl.engine.sglang.seam_check import SeamError
from tokenflow_sgl.engine.sglang.server import ServerArgs

logger = logging.getLogger(__name__)

NAME = "tokenflow_scheduler"
"""Of the entry: the class of the scheduler that runs; /server_info has it, too."""
HOST_KV = "tokenflow_host_ratio"
"""Of the entry: KV that the host has room for over the device's, which no option may say."""
CONTROLLER = "sglang.srt.managers.data_parallel_controller"
_LAUNCH = "sglang.srt.entrypoints.engine:Engine._launch_scheduler_processes"

Launched = tuple[Any, Any]


def announcement(scheduler: type) -> dict[str, Any]:
    """What a scheduler of ours says when it is ready.

    Raises:
        SeamError: Something of ours is not in place any more; the message names it.
    """
    check_in_place()
    return {NAME: scheduler.__name__}


def hold_replicas() -> None:
    """In the process of the controller of data-parallel replicas: it passes on what all say."""
    hold_controller(_of_all)


def hold_launch() -> None:
    """In the process that launches schedulers: wait until all have said that they are ours."""
    hold(
        _LAUNCH,
        _launch,
        HookType.AROUND,
        "waits until every scheduler has said that it is ours",
        ("server_args",),
    )


def _launch(
    original: Callable[..., Launched],
    engine: type,
    server_args: ServerArgs,
    *args: Any,
    **more: Any,
) -> Launched:
    result, processes = original(engine, server_args, *args, **more)
    if not _asked_for(server_args):
        return result, processes

    def wait_for_ours() -> None:
        result.wait_for_ready()
        try:
            check_all(heard(result.scheduler_infos))
            check_in_place()
        except SeamError as error:
            # First: a rank that outlives another one for a moment has SGLang end this process.
            logger.error("tokenflow: %s", error)
            for pid in result.all_child_pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if getattr(server_args, COMMAND_ATTRIBUTE, False):
                raise SystemExit(1) from None
            raise

    return dataclasses.replace(result, wait_for_ready=wait_for_ours), processes


def check_all(said: list[dict[str, Any]]) -> None:
    """Make sure that each scheduler has said that it is ours.

    Raises:
        SeamError: One has not.
    """
    if not said or any(NAME not in each for each in said):
        raise SeamError(
            "SGLang's own scheduler runs where tokenflow's was asked for: this plugin was not "
            "loaded in the scheduler's process, or another one kept it out; the log above says "
            "which plugins were loaded there"
        )


def _asked_for(server_args: ServerArgs) -> bool:
    return (
        config_of(server_args) is not None
        or restoring_planner(server_args) != NO_PLANNER
        or layerwise_of(server_args) is not None
    )


def _of_all(said: list[dict[str, Any]]) -> dict[str, Any]:
    """What the replicas' schedulers say as one; empty: not all of them are ours."""
    names = {each.get(NAME) for each in said}
    if len(names) != 1 or None in names:
        return {}
    ratios = [each[HOST_KV] for each in said if HOST_KV in each]
    return {NAME: names.pop(), **({HOST_KV: min(ratios)} if ratios else {})}
