"""A server that streams made-up answers on time, and misbehaves when told to.

Speaks the three endpoints as SGLang does, and says at /written how much it has written. One timer
writes to all connections that are due, so that it can feed thousands of streams; every chunk
carries the `time.monotonic()` at which it was written (`stamp`), which client processes on the same
machine can compare with their own. Run as a program it takes a `Behaviour` as JSON and prints its
URL.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Behaviour:
    """How the stub answers.

    `failures` maps the number of a request, counted from 0 over all that stream, to what goes
    wrong: 500, 400, break (connection closed after two tokens), garbage, hang (silent after two
    tokens), abort, error, unfinished (ends without a reason), json (no stream), die (the process).
    """

    gap_s: float = 0.01
    first_s: float = 0.0
    tick_s: float = 0.002
    jitter: bool = False
    in_step: bool = False
    tokens_per_chunk: int = 1
    cumulative: bool = False
    usage: bool = True
    final_usage: bool = True
    token_ids: bool = True
    stop_after: int | None = None
    prompt_factor: float = 1.0
    template_tokens: int = 0
    vocabulary: int | None = 1000
    context: int | None = None
    server_info: dict[str, Any] | None = None
    late_per_request: int = 0
    steps_per_request: int = 0
    keep_bodies: bool = True
    stamps: bool = True
    failures: dict[int, str] = field(default_factory=dict)


class _Connection(asyncio.Protocol):
    def __init__(self, stub: Stub) -> None:
        self.stub = stub
        self.received = bytearray()
        self.size: int | None = None
        self.sent = 0
        self.failure: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self.stub.live:
            self.stub.live.remove(self)
            self.stub.abandoned += 1

    def data_received(self, data: bytes) -> None:
        self.received += data
        while True:
            end = self.received.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self.received[:end]).decode().split("\r\n")
            headers = {
                name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:])
            }
            size = end + 4 + int(headers.get("content-length", 0))
            if len(self.received) < size:
                return
            body = bytes(self.received[end + 4 : size])
            del self.received[:size]
            method, path, _ = head[0].split(" ")
            self.stub.headers.append(headers)
            if method == "GET":
                self.reply(*self.stub.information(path))
            else:
                self.post(path, json.loads(body))

    def reply(self, status: int, body: Any) -> None:
        text = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.transport.write(
            b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (status, len(text), text)
        )

    def post(self, path: str, body: dict[str, Any]) -> None:
        stub = self.stub
        sampling = body.get("sampling_params", body)
        if "logit_bias" in sampling:
            if stub.behaviour.vocabulary is None:
                self.reply(404, {"detail": "Not Found"})
                return
            last = stub.behaviour.vocabulary - 1
            text = f"logit_bias must has keys in [0, {last}], got -1"
            self.reply(400, {"error": {"message": text}})
            return
        number = stub.posts
        stub.posts += 1
        if stub.behaviour.keep_bodies:
            stub.bodies.append((path, body))
        self.path = path
        self.body_tokens = stub.prompt_tokens(path, body)
        self.wanted = int(sampling.get("max_new_tokens") or sampling["max_tokens"])
        custom = sampling.get("custom_params") or {}
        ends = (stub.behaviour.stop_after, custom.get("emulated_output_tokens"))
        self.end = min([self.wanted, *(end for end in ends if end is not None)])
        self.usage = bool(body.get("stream_options", {}).get("continuous_usage_stats"))
        self.final_usage = bool(body.get("stream_options", {}).get("include_usage"))
        self.failure = stub.behaviour.failures.get(number)
        self.arrival = custom.get("emulated_arrival")
        if self.failure == "die":
            os._exit(1)
        if self.failure in ("400", "500"):
            self.reply(int(self.failure), {"error": {"message": f"no {self.failure}"}})
        elif self.failure == "json":
            self.reply(200, {"text": "all at once"})
        else:
            self.transport.write(_HEAD)
            self.due = time.monotonic() + stub.behaviour.first_s
            if stub.behaviour.jitter:
                self.due += random.random() * stub.behaviour.gap_s
            if stub.behaviour.in_step:
                self.due += stub.behaviour.gap_s - self.due % stub.behaviour.gap_s
            stub.live.append(self)

    def write_chunk(self) -> bool:
        """Write what is next; return whether the stream is over."""
        behaviour = self.stub.behaviour
        before = self.sent
        self.sent = min(self.end, before + behaviour.tokens_per_chunk)
        over = self.sent == self.end
        if self.failure not in (None, "unfinished") and self.sent > 2:
            self.sent = before
            return self.misbehave()
        self.stub.written += self.sent - before
        self.stub.ended += over
        if self.failure == "unfinished" and over:
            self.event(b"[DONE]", last=True)
            return True
        reason = ("length" if self.sent == self.wanted else "stop") if over else None
        if self.path == "/generate":
            self.event(self.generate_chunk(before, reason), last=False)
        else:
            self.openai_chunks(before, reason)
        if over:
            self.event(b"[DONE]", last=True)
        return over

    def misbehave(self) -> bool:
        if self.failure == "break":
            self.transport.abort()
        elif self.failure == "garbage":
            self.event(b'{"text": "half', last=False)
        elif self.failure in ("boundless", "nested"):
            nasty = b'{"meta_info":{"completion_tokens":1e999,"prompt_tokens":1}}'
            self.event(nasty if self.failure == "boundless" else b"[" * 20_000, last=False)
        elif self.failure == "comments":
            self.transport.write(b"9\r\n: alive\n\n\r\n")
            self.due = time.monotonic() + 0.02
            return False
        elif self.failure == "half":
            self.event(b'{"error": {"message": "[/INST] \\ud83d [x=1]"}}', last=True)
        elif self.failure == "error":
            self.event(b'{"error": {"message": "no memory"}}', last=True)
        elif self.failure == "abort":
            chunk = self.generate_chunk(self.sent, "abort")
            self.event(chunk.replace(b'"abort"', b'"abort","message":"evicted"'), last=True)
        # "hang": nothing
        return True

    def event(self, data: bytes, *, last: bool) -> None:
        event = b"data: %b\n\n" % data
        end = b"0\r\n\r\n" if last else b""
        self.transport.write(b"%x\r\n%b\r\n%b" % (len(event), event, end))

    def generate_chunk(self, before: int, reason: str | None) -> bytes:
        first = 0 if self.stub.behaviour.cumulative else before
        ids = ",".join(str(100 + number) for number in range(first, self.sent))
        why = b"null" if reason is None else b'{"type":"%b"}' % reason.encode()
        return (
            b'{"text":" \\"completion_tokens\\":9","output_ids":[%b],"meta_info":{"id":"%032x",'
            b'"finish_reason":%b,"prompt_tokens":%d,"weight_version":"default",'
            b'"total_retractions":0,"completion_tokens":%d,"cached_tokens":0,"stamp":%.6f%b}}'
        ) % (
            ids.encode(),
            id(self),
            why,
            self.body_tokens,
            self.sent,
            time.monotonic(),
            self.emulated_times(first),
        )

    def emulated_times(self, first: int) -> bytes:
        """On a virtual clock: a token every tenth of a second after the arrival."""
        if self.arrival is None or not self.stub.behaviour.stamps:
            return b""
        at_s = self.arrival["at_s"]
        times = [at_s + 0.1 * (number + 1) for number in range(first, self.sent)]
        return b',"emulated_s":%b' % json.dumps(times).encode()

    def openai_chunks(self, before: int, reason: str | None) -> None:
        chat = self.path.endswith("/chat/completions")
        text = "".join(f" t{number}" for number in range(before, self.sent))
        usage = {
            "prompt_tokens": self.body_tokens,
            "total_tokens": self.body_tokens + self.sent,
            "completion_tokens": self.sent,
        }
        choice: dict[str, Any] = {"index": 0, "finish_reason": None}
        chunk: dict[str, Any] = {"id": "x", "model": "m", "choices": [choice]}
        if chat:
            if before == 0:
                role = {"index": 0, "delta": {"role": "assistant", "content": ""}}
                self.event(_dump({**chunk, "choices": [role]}), last=False)
            choice["delta"] = {"content": text}
        else:
            choice |= {"text": text, "finish_reason": reason}
            if self.stub.behaviour.token_ids:
                choice["token_ids"] = list(range(100 + before, 100 + self.sent))
        if self.usage and self.stub.behaviour.usage:
            chunk["usage"] = usage
        self.event(_dump(chunk), last=False)
        if reason is not None and chat:
            end = {"index": 0, "delta": {}, "finish_reason": reason}
            self.event(_dump({**chunk, "choices": [end], "usage": None}), last=False)
        if reason is not None and self.final_usage and self.stub.behaviour.final_usage:
            self.event(_dump({"id": "x", "choices": [], "usage": usage}), last=False)


class Stub:
    """The server; `bodies` are what it was asked, `asked` the paths of GETs."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.live: list[_Connection] = []
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.asked: list[str] = []
        self.posts = 0
        self.abandoned = 0
        self.written = self.ended = 0
        """Tokens, and answers that are complete."""

    def prompt_tokens(self, path: str, body: dict[str, Any]) -> int:
        if path == "/generate":
            return len(body["input_ids"])
        if path == "/v1/completions":
            return len(body["prompt"])
        words = sum(len(message["content"].split()) for message in body["messages"])
        return round(self.behaviour.template_tokens + self.behaviour.prompt_factor * words)

    def information(self, path: str) -> tuple[int, Any]:
        self.asked.append(path)
        if path == "/written":
            return 200, {"tokens": self.written, "ended": self.ended}
        info = self.behaviour.server_info
        if path == "/server_info" and info is not None:
            info = json.loads(json.dumps(info))
            for state in info.get("internal_states", []):
                device = state.get("emulated_device") if isinstance(state, dict) else None
                if isinstance(device, dict):
                    device["steps"] = 1000 + self.posts * self.behaviour.steps_per_request
                    device["late_steps"] = 7 + self.posts * self.behaviour.late_per_request
            return 200, info
        if path == "/model_info" and info is not None:
            return 200, {"model_path": "/models/tiny", "served_model_name": "tiny"}
        if path == "/v1/models" and self.behaviour.context is not None:
            return 200, {"data": [{"id": "tiny", "max_model_len": self.behaviour.context}]}
        return 404, {"detail": "Not Found"}

    async def write_due(self) -> None:
        """Feed the streams, for ever."""
        gap_s = self.behaviour.gap_s
        while True:
            await asyncio.sleep(self.behaviour.tick_s)
            now = time.monotonic()
            over = []
            for connection in self.live:
                if connection.due <= now:
                    connection.due += gap_s
                    if connection.write_chunk():
                        over.append(connection)
            for connection in over:
                self.live.remove(connection)


@contextlib.asynccontextmanager
async def serve(behaviour: Behaviour, port: int = 0) -> AsyncIterator[tuple[Stub, str]]:
    """The stub and its URL, in this event loop."""
    stub = Stub(behaviour)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(stub), "127.0.0.1", port, backlog=4096)
    writer = loop.create_task(stub.write_due())
    try:
        yield stub, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        writer.cancel()
        server.close()
        for connection in list(stub.live):
            connection.transport.abort()


def _dump(chunk: dict[str, Any]) -> bytes:
    return json.dumps(chunk, separators=(",", ":")).encode()


async def main() -> None:
    options = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    options["failures"] = {int(key): kind for key, kind in options.get("failures", {}).items()}
    async with serve(dataclasses.replace(Behaviour(), **options)) as (_, url):
        print(url, flush=True)
        gc.freeze()
        gc.disable()
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(main())
