"""How soon a server answers after a thousand readers have left at once: stock against tokenflow.

    python benchmarks/mass_disconnect.py [--streams 1000] [--rounds 5] [--running 64]

Two real SGLang servers on the CPU platform, one working at a time (the other is stopped), in
alternating order. Each gets the same streams, of which `--running` fit into its batch; stock lets
the others wait, tokenflow takes them in turns. Then all connections are closed at once, and one
new request is sent in the same moment. It waits behind those streams; so its answer comes when the
engine has got through all aborts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import resource
import statistics
import tempfile
import time
from pathlib import Path

from tokenflow_sgl.lab.demo.server import SglangServer
from tokenflow_sgl_emulator.models import make_tiny_model

ENV = {"SGLANG_PLATFORM": "tokenflow_emu", "HF_HUB_OFFLINE": "1"}
PROMPT, LONG, SETTLE = 16, 4000, 6.0
"""Prompt tokens, output tokens never reached, seconds for streams to take their places."""


async def send(port: int, ids: list[int], tokens: int, *, stream: bool) -> asyncio.StreamReader:
    """Ask for `tokens` tokens; returns the connection, whose writer hangs on the reader."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(
        {
            "input_ids": ids,
            "stream": stream,
            "sampling_params": {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True},
        }
    ).encode()
    head = f"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
    await writer.drain()
    reader.writer = writer  # type: ignore[attr-defined]
    return reader


async def read_away(reader: asyncio.StreamReader) -> None:
    """Read what comes, so that the server never waits for its reader."""
    while await reader.read(65536):
        pass


async def one_round(server: SglangServer, streams: int, seed: int) -> float:
    """Seconds from the disconnects to the next request's answer."""
    rng = random.Random(seed)

    def prompt() -> list[int]:
        return [rng.randrange(10, 200) for _ in range(PROMPT)]

    readers = await asyncio.gather(
        *(send(server.port, prompt(), LONG, stream=True) for _ in range(streams))
    )
    reading = [asyncio.create_task(read_away(reader)) for reader in readers]
    await asyncio.sleep(SETTLE)
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    left = time.monotonic()
    for reader in readers:
        reader.writer.transport.abort()  # type: ignore[attr-defined]
    answer = await send(server.port, prompt(), 1, stream=False)
    status = await answer.readline()
    seconds = time.monotonic() - left
    assert b" 200 " in status, status
    answer.writer.close()  # type: ignore[attr-defined]
    with contextlib.suppress(OSError):
        await answer.writer.wait_closed()  # type: ignore[attr-defined]
    await asyncio.sleep(1.0)
    return seconds


def main() -> None:
    """Print every round and the ratio of the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--running", type=int, default=64, help="streams in a batch at most")
    parser.add_argument("--again", action="store_true", help="stock against stock")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    flags = ["--max-running-requests", str(options.running), "--max-total-tokens", "300000"]
    flags += ["--random-seed", "1", "--sleep-on-idle"]
    second = [] if options.again else ["--scheduler", "tokenflow"]
    with tempfile.TemporaryDirectory() as scratch:
        model = make_tiny_model(Path(scratch) / "model", arch="llama")
        logs = [Path(scratch) / name for name in ("stock.log", "ours.log")]
        with (
            SglangServer(model, flags, env=ENV, log_path=logs[0]) as stock,
            SglangServer(model, [*flags, *second], env=ENV, log_path=logs[1]) as ours,
        ):
            stock.pause()
            ours.pause()
            seconds: dict[str, list[float]] = {stock.url: [], ours.url: []}
            for number in range(options.rounds + 1):  # the first one warms up
                order = (stock, ours) if number % 2 == 0 else (ours, stock)
                for server in order:
                    server.resume()
                    took = asyncio.run(one_round(server, options.streams, number))
                    server.pause()
                    if number:
                        seconds[server.url].append(took)
                if number:
                    print(
                        f"round {number}: stock {seconds[stock.url][-1]:.2f} s, "
                        f"second {seconds[ours.url][-1]:.2f} s",
                        flush=True,
                    )
    middle, other = (statistics.median(seconds[server.url]) for server in (stock, ours))
    print(
        f"{options.streams} disconnects, median time to the next answer: stock {middle:.2f} s, "
        f"second {other:.2f} s, ratio {other / middle:.2f}"
    )


if __name__ == "__main__":
    main()
