"""A plugin of pytest: servers that SGLang's own tests start run on the emulator's platform.

`porting.sglang_tests` loads it and sets the variables. Nothing of the tests is changed but the
helper that launches a server, and the names of its models. Tests that build a scheduler by
themselves build ours, where ours is asked for.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenflow_sgl.lab.demo.server import free_port

LAUNCHER = "TOKENFLOW_TESTS_LAUNCHER"
"""JSON: the words before a server's module."""
FLAGS = "TOKENFLOW_TESTS_FLAGS"
"""JSON: options that every server gets; empty: as stock."""
OPTIONS = "TOKENFLOW_TESTS_OPTIONS"
"""More options that every server gets, as stock, too; as in a shell."""
MODEL = "TOKENFLOW_TESTS_MODEL"
"""The folder of a tiny model, which stands for every model."""
MODULE = "sglang.launch_server"
PATHS = ("--model-path", "--model", "--tokenizer-path")
NOT_HERE = (
    *("--device", "--attention-backend", "--prefill-attention-backend"),
    *("--decode-attention-backend", "--sampling-backend", "--lora-backend", "--dtype"),
    *("--mem-fraction-static", "--cuda-graph-max-bs", "--cuda-graph-bs", "--moe-runner-backend"),
    *("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs-prefill"),
    *("--cuda-graph-backend-decode", "--cuda-graph-backend-prefill", "--base-gpu-id"),
)
"""Options that are about a GPU: the platform has its own."""
HOST = ("--hicache-ratio", "2")
"""SGLang's default, which it does not even try with less than 10 GiB of host memory."""
LENGTH = ("--context-length", "2048")
"""The tiny model's answers end only there, where a test sets no limit."""
POLL_SECONDS = 0.5
COLD = (sys.executable, "-m")
"""In place of the launcher: SGLang is imported anew."""
AT_IMPORT = re.compile(r"^\w+ *(?::[^=\n]+)?= .*?\b(SGLANG_\w+)", re.MULTILINE)
"""A module's own name that a variable of the environment is assigned to."""


def pytest_configure() -> None:
    """Before tests are collected: they import names of the helpers."""
    import sglang
    from sglang.test import test_utils

    model, flags = os.environ[MODEL], json.loads(os.environ[FLAGS])
    more = shlex.split(os.environ.get(OPTIONS, ""))
    for name, value in [*vars(test_utils).items()]:
        if name.startswith("DEFAULT_") and "MODEL" in name and isinstance(value, str):
            setattr(test_utils, name, model)
    port = free_port()  # two runs do not meet
    test_utils.DEFAULT_PORT_FOR_SRT_TEST_RUNNER = port - 1000
    test_utils.DEFAULT_URL_FOR_TEST = f"http://127.0.0.1:{port}"
    launch = launching(
        test_utils._subprocess_popen_with_outputs,
        lambda command: command_of(command, model, flags, more),
        read_at_import(Path(sglang.__file__).parent / "srt"),
    )
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


def launching(
    original: Callable[..., Any],
    change: Callable[[Sequence[str]], list[str]],
    at_import: frozenset[str],
) -> Callable[..., Any]:
    """SGLang's helper `original`, with the command changed.

    at_import: Variables; where a test has set one, the server is no fork.
    """
    before = {name: os.environ.get(name) for name in at_import}

    def launch(
        command: Sequence[str], env: Mapping[str, str] | None, return_stdout_stderr: Any
    ) -> Any:
        given = os.environ if env is None else env
        is_cold = any(given.get(name) != value for name, value in before.items())
        launcher = COLD if is_cold else json.loads(os.environ[LAUNCHER])
        return original([*launcher, *change(command)], env, return_stdout_stderr)

    return launch


def read_at_import(folder: Path) -> frozenset[str]:
    """The variables that SGLang reads when it is imported, which is too early in a fork."""
    texts = (path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    return frozenset(name for text in texts for name in AT_IMPORT.findall(text))


def command_of(
    given: Sequence[str], model: str, flags: Sequence[str], more: Sequence[str] = ()
) -> list[str]:
    """A server's module and options, for the command with which SGLang's helper would start it.

    flags: Of the mode; none: as stock.
    more: Of every mode.
    """
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
    limit = () if LENGTH[0] in (*kept, *more) else LENGTH
    host = HOST if on_host and not told else ()
    return [MODULE, *more, *kept, *limit, *host, *flags]  # the last of equal names counts


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
