"""Clients that ask one thing after the other, hang up and abort, and check what they get."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

from attacker.asking import TENANT, Ask, draw
from attacker.journal import Journal
from attacker.replies import Allowed, Reply, judge
from attacker.truth import Subject

LOST_SECONDS = 240.0
"""Silence after which an answer counts as lost: on a busy machine new weights wait for long."""
HEADERS = {"content-type": "application/json"}


class Client(threading.Thread):
    """All that it does comes from its seed; what it gets does not change it.

    Args:
        port: Of the server.
        name: Of this client, also the beginning of its request ids.
        seed: Of its random numbers.
        subjects: What it may ask.
        without: What it leaves out, see asking.py.
        journal: Where it says what it does.
        until: When it stops, by time.monotonic().
        door: Its requests are of tenants, and some may not wait long.
        allowed: What their answers may be like.
    """

    def __init__(
        self,
        port: int,
        name: str,
        seed: str,
        subjects: Sequence[Subject],
        without: frozenset[str],
        journal: Journal,
        until: float,
        *,
        door: bool,
        allowed: Allowed,
    ) -> None:
        super().__init__(name=name)
        self._port, self._door = port, door
        self._allowed = allowed
        self._rng = random.Random(f"{seed} {name}")
        self._subjects, self._without = subjects, without
        self._journal, self._until = journal, until
        self._asked = 0

    def run(self) -> None:
        """Ask until the round is over."""
        while time.monotonic() < self._until and not self._journal.noticed.is_set():
            time.sleep(self._rng.expovariate(5.0))
            name = f"{self.name}-{self._asked}"
            self._asked += 1
            try:
                self._ask(draw(self._rng, self._subjects, name, self._without, door=self._door))
            except Exception as error:
                self._journal.accuse(name, f"lost: {error!r}")

    def _ask(self, ask: Ask) -> None:
        journal, name = self._journal, f"{self.name}-{self._asked - 1}"
        journal.note(name, str(ask))
        started = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=LOST_SECONDS)
        with contextlib.closing(connection):
            who = {} if ask.tenant is None else {TENANT: ask.tenant}
            connection.request("POST", ask.path, ask.payload, HEADERS | who)
            hang_up = Delayed(ask.hang_up, lambda: _hang_up(connection))
            abort = Delayed(ask.abort, lambda: self._abort(ask.rid))
            rests = Restless(ask.rest, lambda: self._rest(ask.rid))
            try:
                reply = self._read(ask, connection)
            except (OSError, http.client.HTTPException, ValueError, AttributeError):
                # http.client's own way to say that the socket went away below it.
                if not hang_up.done:
                    raise
                reply = None
            finally:
                hang_up.settle()
                abort.settle()
                rests.settle()
        if reply is None or hang_up.done:
            journal.count("hung up")
            return
        aborted = abort.done or journal.swept(started)
        if wrong := judge(ask, reply, aborted=aborted, allowed=self._allowed):
            journal.accuse(name, f"{ask}: {wrong}")
        reasons = {sample.reason for sample in reply.samples.values()}
        outcome = "aborted" if "abort" in reasons else "refused" if reply.error else "answered"
        journal.count(outcome)
        journal.note(name, outcome)

    def _read(self, ask: Ask, connection: http.client.HTTPConnection) -> Reply:
        response = connection.getresponse()
        reply = Reply(response.status)
        if response.status == HTTPStatus.TOO_MANY_REQUESTS and not response.getheader(
            "Retry-After"
        ):
            reply.faults.append("HTTP 429 without Retry-After")
        if not ask.stream or response.status != 200:
            reply.whole(response.read().decode())
            return reply
        ended = False
        for line in response:
            if not line.startswith(b"data: "):
                continue
            if ended:
                reply.faults.append(f"goes on after [DONE]: {line!r}")
            if line.strip() == b"data: [DONE]":
                ended = True
            else:
                reply.event(line[len(b"data: ") :].decode())
        if not ended:
            raise http.client.IncompleteRead(b"")
        return reply

    def _abort(self, rid: str) -> None:
        self._journal.note(rid, "abort")
        post(self._port, "/abort_request", {"rid": rid})

    def _rest(self, rid: str) -> None:
        """It is back for a moment, and looks away."""
        for rate in (1000, 0):
            status, text = post(self._port, f"/tokenflow/streams/{rid}", {"rate": rate})
            self._journal.count(f"rate: HTTP {status}")
            if status not in (204, 404, 409):
                self._journal.accuse(rid, f"rate {rate}: HTTP {status} {text[:500]}")


class Delayed:
    """Does something after a number of seconds, unless it is settled before.

    Attributes:
        done: Whether it has begun to.
    """

    def __init__(self, seconds: float | None, what: Any) -> None:
        self.done = False
        self._what = what
        self._timer = None if seconds is None else threading.Timer(seconds, self._do)
        if self._timer is not None:
            self._timer.start()

    def _do(self) -> None:
        self.done = True
        self._what()

    def settle(self) -> None:
        """Too late now, or wait until it is done."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()


class Restless:
    """Does something again and again, until it is settled.

    Args:
        seconds: After which it begins to, and from one time to the next; None: never.
        what: It does.
    """

    def __init__(self, seconds: tuple[float, float] | None, what: Callable[[], None]) -> None:
        self._seconds, self._what = seconds, what
        self._settled = threading.Event()
        self._thread = threading.Thread(target=self._do, daemon=True)
        if seconds is not None:
            self._thread.start()

    def _do(self) -> None:
        assert self._seconds is not None
        wait, every = self._seconds
        while not self._settled.wait(wait):
            self._what()
            wait = every

    def settle(self) -> None:
        """Enough; waits until it is done."""
        self._settled.set()
        if self._seconds is not None:
            self._thread.join()


def _hang_up(connection: http.client.HTTPConnection) -> None:
    if connection.sock is not None:
        with contextlib.suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)


def post(port: int, path: str, body: Any, method: str = "POST") -> tuple[int, str]:
    """HTTP status and text of a request that is not for an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LOST_SECONDS)
    with contextlib.closing(connection):
        connection.request(method, path, json.dumps(body).encode(), HEADERS)
        response = connection.getresponse()
        return response.status, response.read().decode()
