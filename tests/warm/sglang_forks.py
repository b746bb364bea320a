"""SGLang, imported once: every server that `launch.py` asks for is a fork of this process.

``python -m sglang.launch_server`` imports SGLang in three processes, 40 seconds of CPU time in all;
a fork has it at once. Before the fork only the emulator's platform is chosen, for which SGLang asks
when it is imported; plugins are loaded by each server as always, with the variables it is given.
What is not as always: its own processes are forked too, and what hooks are bound to is looked up in
a table (known_bindings.py). That both ways are the same server, the reference of the engine tests
shows: it comes from a cold one.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import multiprocessing
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
from typing import Any

from known_bindings import KnownBindings

PR_SET_PDEATHSIG = 1
PRELOADED = (
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.managers.scheduler",
)
MODELS = "tokenflow_sgl_emulator.archs"
"""Of its models every server that has the emulator's platform imports all."""
REQUEST_BYTES = 1 << 20
POLL_SECONDS = 0.1


def main(descriptor: int) -> None:
    """Serve forks on a listening Unix socket until the process that started us ends."""
    die_with_parent()
    for module in PRELOADED:
        importlib.import_module(module)
    models = importlib.import_module(MODELS)
    for module in pkgutil.iter_modules(models.__path__, f"{MODELS}."):
        importlib.import_module(module.name)
    hook_registry = importlib.import_module("sglang.srt.plugins.hook_registry")
    hook_registry._propagate_patch = KnownBindings()
    renew_thread_pools()
    gc.freeze()  # a collection in a fork would copy every page
    with socket.socket(fileno=descriptor) as listening:
        request, outputs = next_fork(listening)
    become(request, outputs)


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends, however it does."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def renew_thread_pools() -> None:
    """Have each fork make PyTorch's pool of threads anew, while it has one thread only.

    PyTorch does so at its next use, without a lock: threads that are first at once, as those that
    load DeepSeek's weights, get none and fail ("Invalid thread pool!").
    """
    torch = importlib.import_module("torch")
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(torch.get_num_threads()))


def next_fork(listening: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each request; returns in the forks only, with it and what it is to write to.

    A fork lives as long as the connection that asked for it, and its exit code is the answer.
    """
    asked: dict[int, socket.socket] = {}  # the connection of each fork, by its process id
    events = selectors.DefaultSelector()
    events.register(listening, selectors.EVENT_READ)
    while True:
        for key, _ in events.select(POLL_SECONDS):
            if key.fileobj is listening:
                connection, _ = listening.accept()
                message, outputs, _, _ = socket.recv_fds(connection, REQUEST_BYTES, 2)
                if not outputs:  # hung up already
                    connection.close()
                    continue
                pid = os.fork()
                os.setpgid(pid, pid or os.getpid())  # by both: neither may come too late
                if pid == 0:
                    events.close()
                    connection.close()
                    return json.loads(message), outputs
                for output in outputs:
                    os.close(output)
                asked[pid] = connection
                events.register(connection, selectors.EVENT_READ, pid)
            else:  # hung up: the server is not wanted any more
                events.unregister(key.fileobj)
                kill_group(key.data)
        for pid in [*asked]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                kill_group(pid)
                connection = asked.pop(pid)
                if connection in events.get_map():
                    events.unregister(connection)
                answer(connection, os.waitstatus_to_exitcode(status))


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def answer(connection: socket.socket, code: int) -> None:
    with connection, contextlib.suppress(BrokenPipeError):
        connection.send(str(code).encode())


def become(request: dict[str, Any], outputs: list[int]) -> None:
    """Go on as the command that was asked for: a module or a script, and its arguments."""
    die_with_parent()
    for stream, output in zip((sys.stdout, sys.stderr), outputs, strict=True):
        os.dup2(output, stream.fileno())
        os.close(output)
    os.environ.update(request["env"])  # and what imports have set stays, as it would
    sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(":") if folder]
    multiprocessing.set_start_method("fork", force=True)
    # SGLang insists on "spawn", which would import everything again.
    multiprocessing.set_start_method = lambda *_, **__: None
    program, *_ = sys.argv = request["command"]
    run = runpy.run_path if program.endswith(".py") else runpy.run_module
    run(program, run_name="__main__")


if __name__ == "__main__":
    main(int(sys.argv[1]))
