"""A live stream under a test's eyes, and what is told of it by POST and DELETE."""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import threading
import time
from typing import Any

LOOKS, LOOK_SECONDS = 20, 0.05
"""So many looks in a row have to find a stream where it was. A test that itself stood still goes on
looking: what came meanwhile is read by then."""
numbers = itertools.count()


class Reading(threading.Thread):
    """Reads one stream and remembers when how many tokens had come."""

    def __init__(
        self, served, ids: list[int], tokens: int, rate: float = 10.0, **more: Any
    ) -> None:
        super().__init__(daemon=True)
        self.served = served
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        sampling["custom_params"] = {"tokenflow_rate": rate}
        self.rid: str = more.setdefault("rid", f"told-{next(numbers)}-{tokens}")
        self.body = {"input_ids": ids, "stream": True, "sampling_params": sampling, **more}
        self.came: list[tuple[float, int]] = []
        self.ids: list[int] = []
        self.reason: Any = None
        self.left = False
        self.start()

    def ends_after(self, answer: list[int]) -> None:
        """Its tokens begin with those of `answer`; what would follow is cut off."""
        self.wait_for(len(answer))
        assert self.ids[: len(answer)] == answer
        assert told(self.served, self.rid, "", "DELETE") == (204, "")
        self.join(60)

    def leave(self) -> None:
        """The client has gone, and closes its end of the connection."""
        self.left = True
        self.connection.sock.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        port = self.served.server.port
        self.connection = connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request(
            "POST", "/generate", json.dumps(self.body), {"content-type": "application/json"}
        )
        with connection.getresponse() as response:
            try:
                self._read(response)
            except http.client.IncompleteRead:
                if not self.left:  # in the middle of a line
                    raise
        connection.close()

    def _read(self, response: http.client.HTTPResponse) -> None:
        while line := response.readline():
            data = line.decode().removeprefix("data: ").strip()
            if data and data != "[DONE]":
                part = json.loads(data)
                self.ids = part["output_ids"]
                self.reason = part["meta_info"]["finish_reason"]
                self.came.append((time.monotonic(), len(self.ids)))

    def wait_for(self, tokens: int, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while len(self.ids) < tokens:
            assert time.monotonic() < end, f"{len(self.ids)} of {tokens} tokens"
            time.sleep(0.01)

    def stands(self) -> int:
        """Tokens at which the stream stands still, however late they come to the client."""
        # A later answer takes the same way, so what was under way before it has arrived, too.
        assert self.served.generate([20, 21, 22], max_new_tokens=1).status == 200
        end = time.monotonic() + 60.0
        before, looks = len(self.ids), 0
        while looks < LOOKS:
            assert time.monotonic() < end, "it goes on"
            time.sleep(LOOK_SECONDS)
            now = len(self.ids)
            before, looks = now, looks + 1 if now == before else 0
        assert self.reason is None, "it has ended"
        return before


def told(served, rid: str, body: Any, method: str = "POST", **headers: str) -> tuple[int, str]:
    """HTTP status, and what the error says."""
    connection = http.client.HTTPConnection("127.0.0.1", served.server.port, timeout=60)
    raw = body if isinstance(body, str) else json.dumps(body)
    connection.request(method, f"/tokenflow/streams/{rid}", raw, headers)
    with connection.getresponse() as response:
        text = response.read().decode()
    connection.close()
    return response.status, json.loads(text)["error"]["message"] if response.status >= 400 else text
