"""A live stream under a test's eyes, and what is told of it by POST and DELETE."""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import threading
import time
from typing import Any

numbers = itertools.count()


class Reading(threading.Thread):
    """Reads one stream and remembers when how many tokens had come."""

    def __init__(
        self, served, ids: list[int], tokens: int, rate: float = 10.0, **more: Any
    ) -> None:
        super().__init__(daemon=True)
        self.served, self.rid = served, f"told-{next(numbers)}-{tokens}"
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        sampling["custom_params"] = {"tokenflow_rate": rate}
        self.body = {"input_ids": ids, "stream": True, "sampling_params": sampling, "rid": self.rid}
        self.body.update(more)
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

    def stands(self, seconds: float = 1.0) -> int:
        """Tokens at which the stream stands still; at most a few come in the beginning."""
        time.sleep(0.5)
        before = len(self.ids)
        time.sleep(seconds)
        assert len(self.ids) == before, "it goes on"
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
