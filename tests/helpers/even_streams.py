"""A stream of /generate under a test's eyes, chunk by chunk, whatever the server puts in one."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import socket
import threading
import time
from typing import Any

from told_streams import LOOK_SECONDS, LOOKS

numbers = itertools.count()


class Chunked(threading.Thread):
    """Reads one stream, and keeps each chunk and when it came.

    Args:
        served: The server.
        ids: The prompt.
        incremental: Chunks of that server have what is new only.
        custom: The request's custom parameters.
        sampling: Other sampling parameters.
    """

    def __init__(
        self, served: Any, ids: list[int], *, incremental: bool, custom: Any, **sampling: Any
    ) -> None:
        super().__init__(daemon=True)
        self.served, self.incremental = served, incremental
        self.rid = f"even-{next(numbers)}-"
        params = {"temperature": 0, "max_new_tokens": 64, "custom_params": custom, **sampling}
        self.body = {"input_ids": ids, "stream": True, "sampling_params": params, "rid": self.rid}
        self.parts: list[dict[str, Any]] = []
        self.came: list[float] = []
        self.left = False
        self.start()

    def run(self) -> None:
        port = self.served.server.port
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=240)
        kind = {"content-type": "application/json"}
        self.connection.request("POST", "/generate", json.dumps(self.body), kind)
        with contextlib.closing(self.connection), self.connection.getresponse() as response:
            try:
                while line := response.readline():
                    data = line.decode().removeprefix("data: ").strip()
                    if data and data != "[DONE]":
                        self.parts.append(json.loads(data))
                        self.came.append(time.monotonic())
            except (http.client.IncompleteRead, OSError):
                if not self.left:
                    raise

    def leave(self) -> None:
        """The client has gone, and closes its end of the connection."""
        self.left = True
        self.connection.sock.shutdown(socket.SHUT_RDWR)

    def ended(self) -> Chunked:
        """Wait for the end."""
        self.join(240)
        assert not self.is_alive()
        return self

    def wait_for(self, tokens: int, seconds: float = 120.0) -> Chunked:
        """Wait until so many tokens have come."""
        end = time.monotonic() + seconds
        while self.tokens < tokens:
            assert time.monotonic() < end, f"{self.tokens} of {tokens} tokens"
            assert self.is_alive() or self.tokens >= tokens, self.parts[-1:]
            time.sleep(0.01)
        return self

    def stands(self, seconds: float = 60.0) -> int:
        """Tokens at which the stream stands still, however late the last ones come."""
        end = time.monotonic() + seconds
        before, looks = self.tokens, 0
        while looks < LOOKS:
            assert time.monotonic() < end, "it goes on"
            time.sleep(LOOK_SECONDS)
            now = self.tokens
            before, looks = now, looks + 1 if now == before else 0
        assert self.is_alive(), "it has ended"
        return before

    @property
    def tokens(self) -> int:
        """Output tokens so far."""
        return self.counts[-1] if self.parts else 0

    @property
    def counts(self) -> list[int]:
        """Output tokens by each chunk."""
        return [part["meta_info"]["completion_tokens"] for part in self.parts]

    @property
    def ids(self) -> list[int]:
        """Output token ids so far."""
        if self.incremental:
            return [token for part in self.parts for token in part["output_ids"]]
        return list(self.parts[-1]["output_ids"]) if self.parts else []

    @property
    def text(self) -> str:
        """Output text so far."""
        texts = [part["text"] for part in self.parts]
        return "".join(texts) if self.incremental else texts[-1]

    @property
    def reason(self) -> Any:
        """Why it ended; None: it has not."""
        return self.parts[-1]["meta_info"]["finish_reason"]
