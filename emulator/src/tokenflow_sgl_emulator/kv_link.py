"""KV between the two servers of a disaggregated pair, on one machine without a network card.

SGLang's Mooncake backend writes from the prefill server's memory into the decode server's, by an
engine that needs Mooncake. `LocalTransferEngine` is its twin: the kernel copies from one process to
the other (``process_vm_writev``). Each engine says in a file what memory others may write to, as a
card's driver would, and nothing is written anywhere else. The copies take no emulated time.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import logging
import os
import secrets
import tempfile
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from tokenflow_sgl_emulator.emulator_seams import EARLY_SEND, KV_SENDER

logger = logging.getLogger(__name__)

_MOST = 1024
"""Pieces of one call: IOV_MAX of Linux."""
_PR_SET_PTRACER = 0x59616D61
_ANY = ctypes.c_ulong(-1)


class _Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.process_vm_writev.restype = ctypes.c_ssize_t


class LocalTransferEngine:
    """In place of SGLang's `MooncakeTransferEngine`; names and results are that one's.

    Args:
        hostname: Of this machine.
        gpu_id: Unused.
        ib_device: Unused.
    """

    def __init__(
        self, hostname: str, gpu_id: int | None = None, ib_device: str | None = None
    ) -> None:
        self.hostname, self.gpu_id, self.ib_device = hostname, gpu_id, ""
        self.session_id = f"{hostname}:{secrets.randbelow(1 << 60)}"
        # Not with the other hooks: these modules import prometheus_client, which must not happen
        # before SGLang has said that there are several processes.
        HookRegistry.register(EARLY_SEND.target, send_nothing_early, HookType.REPLACE)
        HookRegistry.register(KV_SENDER.target, without_device_events, HookType.AROUND)
        HookRegistry.apply_hooks()
        self._lock = threading.Lock()
        self._memory: dict[int, int] = {}
        # Where Yama restricts it, only parents may write to a process.
        _libc.prctl(_PR_SET_PTRACER, _ANY, 0, 0, 0)
        _forget_the_dead()
        self._say()
        atexit.register(_path(self.session_id).unlink, missing_ok=True)

    def get_session_id(self) -> str:
        """What the other side names this one by."""
        return self.session_id

    def get_ib_device(self) -> str:
        """None."""
        return self.ib_device

    def register(self, ptr: int, length: int) -> None:
        """Others may write here."""
        self.batch_register([ptr], [length])

    def deregister(self, ptr: int) -> None:
        """They may not any more."""
        self.batch_deregister([ptr])

    def batch_register(self, ptrs: list[int], lengths: list[int]) -> int:
        """Others may write here; 0: done."""
        with self._lock:
            self._memory.update(zip(ptrs, lengths, strict=True))
            self._say()
        return 0

    def batch_deregister(self, ptrs: list[int]) -> int:
        """They may not any more; 0: done."""
        with self._lock:
            for ptr in ptrs:
                self._memory.pop(ptr, None)
            self._say()
        return 0

    def transfer_sync(
        self, session_id: str, buffer: int, peer_buffer_address: int, length: int
    ) -> int:
        """Write to the other side; below 0: failed."""
        return self.batch_transfer_sync(session_id, [buffer], [peer_buffer_address], [length])

    def batch_transfer_sync(
        self,
        session_id: str,
        buffers: list[int],
        peer_buffer_addresses: list[int],
        lengths: list[int],
    ) -> int:
        """Write to the other side, piece by piece; below 0: failed."""
        try:
            process, memory = _told(session_id)
            _check(memory, peer_buffer_addresses, lengths)
            for first in range(0, len(lengths), _MOST):
                part = slice(first, first + _MOST)
                _write(process, buffers[part], peer_buffer_addresses[part], lengths[part])
        except (OSError, ValueError) as error:
            logger.warning("KV was not sent to %s: %s", session_id, error)
            return -1
        return 0

    def send_probe(self, peer_session_id: str) -> int:
        """Whether the other side is there; 0: it is."""
        try:
            _told(peer_session_id)
        except (OSError, ValueError):
            return -1
        return 0

    def _say(self) -> None:
        path = _path(self.session_id)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if path.parent.stat().st_uid != os.getuid():
            raise PermissionError(f"{path.parent} is another user's, who could say what is written")
        said = {**_identity(), "memory": sorted(self._memory.items())}
        part = path.with_suffix(".part")
        part.write_text(json.dumps(said))
        part.replace(path)


def without_device_events(
    original: Callable[..., None], sender: Any, *args: Any, **kwargs: Any
) -> None:
    """Around hook: a sender that takes page numbers as they are."""
    original(sender, *args, **kwargs)
    sender.supports_host_tensor_indices = False


def send_nothing_early(scheduler: Any, req: Any, allow_send: bool = True) -> None:
    """In place of the sending of a prefix that was cached: it goes with the rest."""


def _path(session_id: str) -> Path:
    """Where an engine says who it is; only this user reads and writes there."""
    name = session_id.rpartition(":")[2]
    if not name.isdecimal():
        raise ValueError(f"session is {session_id!r}; allowed is what an engine calls itself")
    return Path(tempfile.gettempdir()) / f"tokenflow-emulator-{os.getuid()}" / f"{name}.json"


def _told(session_id: str) -> tuple[int, list[tuple[int, int]]]:
    """The process of an engine, and where others may write: first addresses and bytes, sorted.

    Raises:
        OSError: It is not there.
        ValueError: It was no engine's name.
    """
    path = _path(session_id)
    said = json.loads(path.read_text())
    if not _lives(said):
        path.unlink(missing_ok=True)
        raise ProcessLookupError(f"process {said['process']}, which it was, has ended")
    return int(said["process"]), [(int(at), int(length)) for at, length in said["memory"]]


def _identity() -> dict[str, int]:
    """This process among all that had or will have its number."""
    return {"process": os.getpid(), "started": _started("self") or 0, "namespace": _namespace()}


def _lives(said: dict[str, Any]) -> bool:
    """Whether the process of such an identity is there; of another container's it may be."""
    if said["namespace"] != _namespace():
        return True
    return bool(_started(str(said["process"])) == said["started"])


def _started(process: str) -> int | None:
    """When a process started, clock ticks after the machine; None: it has ended."""
    try:
        # After its name, which is in brackets and may be anything.
        fields = (Path("/proc") / process / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _namespace() -> int:
    """In which numbers of processes are counted: a container's, where folders may be shared."""
    return Path("/proc/self/ns/pid").stat().st_ino


def _forget_the_dead() -> None:
    """Remove what engines said whose processes could not do so, because they were killed."""
    for path in _path("any:0").parent.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            if not _lives(json.loads(path.read_text())):
                path.unlink(missing_ok=True)


def _check(memory: list[tuple[int, int]], addresses: Sequence[int], lengths: Sequence[int]) -> None:
    begins = [at for at, _ in memory]
    for at, length in zip(addresses, lengths, strict=True):
        found = bisect_right(begins, at) - 1
        if found < 0 or at + length > sum(memory[found]):
            raise ValueError(f"nothing may be written to the {length} bytes at {at:#x}")


def _write(
    process: int, sources: Sequence[int], targets: Sequence[int], lengths: Sequence[int]
) -> None:
    array = _Piece * len(lengths)
    source, target = (
        array(*(_Piece(at, length) for at, length in zip(ats, lengths, strict=True)))
        for ats in (sources, targets)
    )
    count = len(lengths)
    done = _libc.process_vm_writev(process, source, count, target, count, 0)
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if done != sum(lengths):
        raise OSError(f"only {done} of {sum(lengths)} bytes were written")
