"""What one tokenizer worker hears of a stream that another one delivers.

With `--tokenizer-worker-num` above 1 any worker may be told a stream's new rate. It tells the
scheduler; the worker that has the stream's token deposit hears it here. SGLang's own messages go
from a worker to the scheduler and back to the same worker, so workers have a datagram socket each.
Its name is in Linux' abstract namespace: it ends with its process, and no file is left behind.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import struct
from collections.abc import Callable
from functools import lru_cache

from tokenflow_sgl.engine.config import LAUNCH_ATTRIBUTE
from tokenflow_sgl.engine.sglang.server import Manager
from tokenflow_sgl.engine.telemetry.sparing import Sparing
from tokenflow_sgl.qos.reader import HIGHEST_RATE, LOWEST_RATE

logger = logging.getLogger(__name__)
logger.addFilter(Sparing())

_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of a sender, as the kernel states them."""
_MOST_BYTES = 1 << 16


class Siblings:
    """The workers of one launch, as one of them sees them.

    Args:
        launch: Name of the launch.
        workers: How many there are.
    """

    def __init__(self, launch: str, workers: int) -> None:
        self._names = [f"\0tokenflow-{launch}-{number}" for number in range(workers)]
        self._socket: socket.socket | None = None

    def listen(self, hear: Callable[[str, float], None]) -> None:
        """Hear from now on, in the running event loop, the rates that siblings are told.

        Args:
            hear: Is called with a request id and a rate in tokens per second, 0 included.
        """
        if self._socket is not None:
            return
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        for name in self._names:
            try:
                listening.bind(name)
            except OSError:
                continue  # a sibling's
            break
        else:
            listening.close()
            logger.error("tokenflow: rates told to other workers do not reach deposits of this one")
            return
        self._socket = listening
        asyncio.get_running_loop().add_reader(listening, self._read, listening, hear)

    def tell(self, rid: str, rate: float) -> None:
        """Tell the siblings that a stream's reader reads so many tokens per second, 0: none."""
        news = json.dumps([rid, rate]).encode()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as telling:
            for name in self._names:
                try:
                    telling.sendto(news, name)
                except ConnectionRefusedError:
                    continue  # that worker has had no deposit yet
                except OSError as error:
                    logger.warning("tokenflow: a worker does not hear of a rate: %s", error)

    @staticmethod
    def _read(listening: socket.socket, hear: Callable[[str, float], None]) -> None:
        room = socket.CMSG_SPACE(_CREDENTIALS.size)
        while True:
            try:
                news, ancillary, _, _ = listening.recvmsg(_MOST_BYTES, room)
            except BlockingIOError:
                return
            said = _said(news) if _is_ours(ancillary) else None
            if said is not None:
                hear(*said)


def _is_ours(ancillary: list[tuple[int, int, bytes]]) -> bool:
    """Whether the sender is a process of the same user: anybody can send to such a name."""
    return any(
        level == socket.SOL_SOCKET
        and kind == socket.SCM_CREDENTIALS
        and _CREDENTIALS.unpack(said[: _CREDENTIALS.size])[1] == os.getuid()
        for level, kind, said in ancillary
    )


def _said(news: bytes) -> tuple[str, float] | None:
    try:
        rid, rate = json.loads(news)
    except (ValueError, TypeError, RecursionError):
        return None
    if not isinstance(rid, str) or isinstance(rate, bool) or not isinstance(rate, int | float):
        return None
    known = rate == 0 or LOWEST_RATE <= rate <= HIGHEST_RATE  # NaN is not
    return (rid, float(rate)) if known else None


@lru_cache(maxsize=1)
def siblings_of(manager: Manager) -> Siblings:
    """The other HTTP workers beside the one whose TokenizerManager this is."""
    args = manager.server_args
    return Siblings(getattr(args, LAUNCH_ATTRIBUTE), args.tokenizer_worker_num)
