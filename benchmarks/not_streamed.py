"""Latency of requests that do not stream, tokenflow over stock SGLang, on an emulated device.

    python benchmarks/not_streamed.py                 # none streams
    python benchmarks/not_streamed.py --streamed 0.5  # beside as many readers of 10 tokens/s
    python benchmarks/not_streamed.py --streamed 0.5 --streams-last

The same requests go to one server after the other: a burst of equal ones, twice as many as fit the
device's memory, 20 ms apart. Which of them stream is drawn at random, or the last of them do:
first come, first served is then all that requests without a stream can wish for. Their answers end
at their limit, which both servers are told. Latency is from sending to the whole answer, in seconds
of the device.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import aiohttp

from tokenflow_sgl.lab.demo.server import SglangServer

TOKENFLOW = str(Path(sys.executable).with_name("tokenflow"))
KV_TOKENS = 35_000
PROMPT, OUTPUT = 512, 384
REQUESTS = 2 * KV_TOKENS // (PROMPT + OUTPUT)
SERVER = ("--max-total-tokens", str(KV_TOKENS))
CONTENDERS = {
    "stock": (),
    "tokenflow": ("--scheduler", "tokenflow", "--hicache-ratio", "8"),
}
WARM_UP = 8
APART_S = 0.02
"""Seconds of the device between two requests: sent at once, SGLang takes those that stream last."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streamed", type=float, default=0.0, help="share of requests that stream")
    parser.add_argument("--streams-last", action="store_true", help="all of those come last")
    parser.add_argument("--device", default="rtx4090")
    parser.add_argument("--dilation", type=float, default=1.0, help="wall-clock seconds per second")
    args = parser.parse_args()
    draw = random.Random(REQUESTS)
    streams = [draw.random() < args.streamed for _ in range(REQUESTS)]
    if args.streams_last:
        streams.sort()
    means = {}
    for name, options in CONTENDERS.items():
        latencies = serve(args.device, args.dilation, options, streams)
        means[name] = fmean(latencies)
        print(f"{name}: mean {means[name]:.2f} s, longest {max(latencies):.2f} s", flush=True)
    print(f"mean latency without a stream, over stock's: {means['tokenflow'] / means['stock']:.3f}")


def serve(
    device: str, dilation: float, options: tuple[str, ...], streams: Sequence[bool]
) -> list[float]:
    """Latencies, in the device's seconds, of the requests that do not stream."""
    launcher = [TOKENFLOW, "serve-emulated", "--device", device, "--model", "llama3-8b"]
    launcher += ["--time-dilation", str(dilation), "--"]
    with (
        tempfile.TemporaryDirectory() as folder,
        SglangServer(
            None, (*SERVER, *options), launcher=launcher, log_path=Path(folder) / "log"
        ) as server,
    ):
        asyncio.run(ask(server.url, [False] * WARM_UP, APART_S))
        found = asyncio.run(ask(server.url, streams, APART_S * dilation))
        return [latency / dilation for latency in found]


async def ask(url: str, streams: Sequence[bool], apart: float) -> list[float]:
    """Send the requests so many seconds apart; latencies of those that do not stream, seconds."""
    draw = random.Random(len(streams))
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, timeout=timeout, connector=connector) as session:

        async def one(place: int, stream: bool) -> float | None:
            body = {
                "input_ids": [draw.randrange(300, 500) for _ in range(PROMPT)],
                "sampling_params": {"max_new_tokens": OUTPUT, "ignore_eos": True},
                "stream": stream,
            }
            await asyncio.sleep(place * apart)
            started = time.perf_counter()
            async with session.post("/generate", json=body) as response:
                await response.read()
                response.raise_for_status()
            return None if stream else time.perf_counter() - started

        answered = await asyncio.gather(*map(one, range(len(streams)), streams))
    return [latency for latency in answered if latency is not None]


if __name__ == "__main__":
    main()
