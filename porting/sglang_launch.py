"""A plugin of pytest: servers that SGLang's own tests start run on the emulator's platform.

`porting.sglang_tests` loads it and sets the variables. Nothing of the tests is changed but the
helper that launches a server, and the names of its models. Tests that build a scheduler by
themselves build ours, where ours is asked for.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenflow_sgl.lab.demo.server import free_port

LAUNCHER = "TOKENFLOW_TESTS_LAUNCHER"
"""JSON: the words before a server's module."""
FLAGS = "TOKENFLOW_TESTS_FLAGS"
"""JSON: options that every server gets; empty: as stock."""
MODEL = "TOKENFLOW_TESTS_MODEL"
"""The folder of a tiny model, which stands for every model."""
MODULE = "sglang.launch_server"
PATHS = ("--model-path", "--model", "--tokenizer-path")
NOT_HERE = (
    *("--device", "--attention-backend", "--prefill-attention-backend"),
    *("--decode-attention-backend", "--sampling-backend", "--lora-backend", "--dtype"),
    *("--mem-fraction-static", "--cuda-graph-max-bs", "--cuda-graph-bs", "--moe-runner-backend"),
    *("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs-prefill"),
    *("--cuda-graph-backend-decode", "--cuda-graph-backend-prefill"),
)
"""Options that are about a GPU: the platform has its own."""
HOST = ("--hicache-ratio", "2")
"""SGLang's default, which it does not even try with less than 10 GiB of host memory."""
LENGTH = ("--context-length", "2048")
"""The tiny model's answers end only there, where a test sets no limit."""
POLL_SECONDS = 0.5


def pytest_configure() -> None:
    """Before tests are collected: they import names of the helpers."""
    from sglang.test import test_utils

    model, flags = os.environ[MODEL], json.loads(os.environ[FLAGS])
    for name, value in [*vars(test_utils).items()]:
        if name.startswith("DEFAULT_") and "MODEL" in name and isinstance(value, str):
            setattr(test_utils, name, model)
    port = free_port()  # two runs do not meet
    test_utils.DEFAULT_PORT_FOR_SRT_TEST_RUNNER = port - 1000
    test_utils.DEFAULT_URL_FOR_TEST = f"http://127.0.0.1:{port}"
    launch = launching(test_utils._subprocess_popen_with_outputs, model, flags)
    test_utils._subprocess_popen_with_outputs = launch
    test_utils.time = Hurried()
    # It would end the run, and its report, with the first server that a test ends.
    test_utils.start_subprocess_fail_fast_watcher = lambda *_args, **_kwargs: None
    if flags:
        from sglang.srt.managers import scheduler

        scheduler.Scheduler = ours_where_built(scheduler.Scheduler)


def ours_where_built(stock: Any) -> Any:
    """Our scheduler, but SGLang's own where a test builds one without `__init__`.

    It lacks what is built there, of ours, too.
    """
    from tokenflow_sgl.engine.shell import TokenFlowScheduler

    class BuiltScheduler(TokenFlowScheduler):
        def __new__(cls, *given: Any, **named: Any) -> Any:
            return super().__new__(cls if given or named else stock)

    return BuiltScheduler


def launching(original: Callable[..., Any], model: str, flags: Sequence[str]) -> Callable[..., Any]:
    """SGLang's helper `original`, with the command changed."""

    def launch(command: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        changed = [*json.loads(os.environ[LAUNCHER]), *command_of(command, model, flags)]
        return original(changed, *args, **kwargs)

    return launch


def command_of(given: Sequence[str], model: str, flags: Sequence[str]) -> list[str]:
    """A server's module and options, for the command with which SGLang's helper would start it."""
    begin = next(at for at, word in enumerate(given) if word.startswith("--"))
    kept: list[str] = []
    for option in _options(given[begin:]):
        name, value = option[0], option[1:]
        if name in NOT_HERE:
            continue
        if name in PATHS and not Path(value[0]).is_dir():
            option = [name, model]
        kept += option
    on_host = bool(flags) or "--enable-hierarchical-cache" in kept
    told = any(word.startswith(("--hicache-ratio", "--hicache-size", "--config")) for word in kept)
    limit = () if LENGTH[0] in kept else LENGTH
    return [MODULE, *kept, *limit, *(HOST if on_host and not told else ()), *flags]


def _options(words: Sequence[str]) -> list[list[str]]:
    """Each option with its values."""
    found: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            name, given, value = word.partition("=")
            found.append([name, value] if given else [name])
        else:
            found[-1].append(word)
    return found


class Hurried:
    """The module `time` for SGLang's helpers, which look after a server every ten seconds."""

    def sleep(self, seconds: float) -> None:
        """At most `POLL_SECONDS`."""
        time.sleep(min(seconds, POLL_SECONDS))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)
