"""Run one real SGLang server as a subprocess, and never leave it behind.

In go a model path and ``sglang.launch_server`` arguments; out comes the URL of a healthy server,
for as long as the ``with`` block lasts. SGLang is started, never imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tokenflow_sgl.errors import FailedError

_POLL_S = 0.2
_PR_SET_PDEATHSIG = 1
_PORTS = (15_000, 22_000)
_TAKEN = "address already in use"
_PORT_TAKEN = re.compile(rf"address \('127\.0\.0\.1', \d+\): {_TAKEN}")


class ServerError(FailedError):
    """The server did not start; the message ends with the tail of its log."""


def free_port(ports: tuple[int, int] = _PORTS) -> int:
    """A loopback TCP port that was free a moment ago.

    From below those that Linux gives to outgoing connections (32,768 on), and those that SGLang
    chooses for itself (22,000 on): a server needs seconds until it listens, and any connection of
    this machine, or another server, could take such a port meanwhile.

    Args:
        ports: The first that may be given, and the one after the last.
    """
    while True:
        port = random.SystemRandom().randrange(*ports)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


class SglangServer:
    """A ``python -m sglang.launch_server`` process group, alive inside a ``with`` block.

    Leaving the block, by whatever way, ends every process of the group. Should the thread that
    entered it end without leaving (a kill, say), Linux ends the server too (parent-death signal).

    Args:
        model_path: Model directory or name, as ``--model-path``; None where the launcher has one.
        args: More command-line arguments of ``sglang.launch_server``.
        env: Variables added to this process's environment for the server.
        log_path: File that receives the server's stdout and stderr (overwritten).
        port: TCP port on 127.0.0.1; a free one when not given, another one should it be taken by
            the time that the server listens.
        launcher: Command that takes these arguments, for another entry point than the module.
        startup_timeout_s: Seconds until a server that is not healthy counts as failed.
        stop_timeout_s: Seconds that a graceful stop may take before the group is killed.
    """

    def __init__(
        self,
        model_path: str | Path | None,
        args: Sequence[str] = (),
        *,
        log_path: str | Path,
        env: Mapping[str, str] | None = None,
        port: int | None = None,
        launcher: Sequence[str] = (sys.executable, "-m", "sglang.launch_server"),
        startup_timeout_s: float = 300.0,
        stop_timeout_s: float = 10.0,
    ) -> None:
        self.port = free_port() if port is None else port
        self.log_path = Path(log_path)
        model = () if model_path is None else ("--model-path", str(model_path))
        self._launch, self._args = (*launcher, *model), tuple(args)
        self._any_port = port is None
        self._env = {**os.environ, **(env or {})}
        self._startup_timeout_s = startup_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def __enter__(self) -> Self:
        """Start the server and return once it is healthy."""
        try:
            self.start()
            self.wait_until_healthy()
        except BaseException:  # Ctrl-C while starting must not leave a server either
            self.stop()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the server."""
        self.stop()

    @property
    def url(self) -> str:
        """Base URL at which the server answers."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def command(self) -> tuple[str, ...]:
        """Command line that starts the server."""
        return (*self._launch, "--host", "127.0.0.1", "--port", str(self.port), *self._args)

    @property
    def pid(self) -> int | None:
        """Process id of the launcher, which leads the process group; None when not running."""
        return None if self._process is None else self._process.pid

    def is_alive(self) -> bool:
        """Return whether the launcher process is running."""
        return self._process is not None and self._process.poll() is None

    def pause(self) -> None:
        """Stop all its processes where they are, so that an idle server costs no CPU time."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on; does nothing to a running one."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGCONT)

    def log_tail(self, lines: int = 40) -> str:
        """Return the last lines of the server's log."""
        return "\n".join(self._log_text().splitlines()[-lines:])

    def _log_text(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def stop(self) -> None:
        """Ask the launcher to end, then kill what is left of its group; twice does no harm."""
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGCONT)  # a paused process would not hear us
                process.terminate()
                try:
                    process.wait(self._stop_timeout_s)
                except subprocess.TimeoutExpired:
                    pass  # the group is killed below in any case
                except BaseException:  # a second Ctrl-C: skip the grace, never the kill
                    _kill_group(process.pid)
                    raise
            _kill_group(process.pid)
            process.wait()
        if self._log is not None:
            self._log.close()
            self._log = None

    def start(self) -> None:
        """Start the server and return at once."""
        if self._process is not None:
            raise RuntimeError("this server is already running")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log = self.log_path.open("wb")
        self._process = subprocess.Popen(
            self.command,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group to kill as one; a terminal's Ctrl-C reaches only us
            preexec_fn=_die_with_parent(),
        )

    def wait_until_healthy(self) -> None:
        """Wait for a server that was started.

        Raises:
            ServerError: It ended, takes too long, or its port is taken.
        """
        deadline = time.monotonic() + self._startup_timeout_s
        while not self._is_healthy():
            code = None if self._process is None else self._process.poll()
            log = self._log_text()
            # SGLang says so, and stays. Or it is a port that it has chosen for itself, seconds
            # before it listens there: then it ends, and chooses another one the next time.
            if _TAKEN in log.lower():
                if self._any_port:
                    self.port = free_port()
                elif _PORT_TAKEN.search(log):
                    raise ServerError(self._failure(f"cannot listen at port {self.port}"))
                self.stop()
                self.start()
            elif self._process is None or code is not None:
                raise ServerError(self._failure(f"ended with exit code {code} while starting"))
            if time.monotonic() > deadline:
                raise ServerError(
                    self._failure(f"was not healthy after {self._startup_timeout_s:g} s")
                )
            time.sleep(_POLL_S)

    def _is_healthy(self) -> bool:
        # http.client and not urllib: no proxy of the environment may come between us and loopback.
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10.0)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _failure(self, what: str) -> str:
        return (
            f"SGLang {what}: {shlex.join(self.command)}\n"
            f"log {self.log_path}, last lines:\n{self.log_tail()}"
        )


@contextlib.contextmanager
def running(servers: Sequence[SglangServer]) -> Iterator[None]:
    """Several servers, started at the same time and alive inside a `with` block.

    Raises:
        ServerError: One did not start.
    """
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.callback(server.stop)
            server.start()
        for server in servers:
            server.wait_until_healthy()
        yield


def _kill_group(pgid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # none is left, as it should be
        os.killpg(pgid, signal.SIGKILL)


def _die_with_parent() -> Callable[[], None] | None:
    """Return a hook for the child that asks Linux to end it when we die; None on other systems."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up before the fork; the child only calls it

    def hook() -> None:
        # Not SIGTERM, which a paused server would not hear. SGLang's own processes die likewise.
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    return hook
