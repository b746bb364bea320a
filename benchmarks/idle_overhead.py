"""What the flag costs a server that is not under stress: token throughput, paired.

    python benchmarks/idle_overhead.py [--pairs 12] [--streams 24] [--tokens 250]

Two real SGLang servers on the CPU platform, stock and `--scheduler tokenflow`, with
memory for everybody. Both get the same streams, one server working at a time (the other
is stopped), in alternating order; printed is the ratio of the two throughputs of each
pair, its median and quartiles. `--again` pairs stock with stock: the noise.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from pathlib import Path

import pyarrow.compute as pc

from tokenflow_sgl.lab.demo.server import SglangServer
from tokenflow_sgl.lab.replay import ReplayOptions, find_target, replay
from tokenflow_sgl.lab.runs import Run
from tokenflow_sgl.lab.traces import Accounting, Trace, TraceRequest
from tokenflow_sgl_emulator.models import make_tiny_model

ENV = {"SGLANG_PLATFORM": "tokenflow_emu", "HF_HUB_OFFLINE": "1"}


def burst(streams: int, tokens: int) -> Trace:
    """Streams of so many tokens, all at once."""
    request = TraceRequest(0.0, prompt_tokens=64, output_tokens=tokens, rate=20.0)
    return Trace("burst", (request,) * streams, Accounting(streams, streams))


def throughput(server: SglangServer, trace: Trace) -> float:
    """Output tokens per second of one run, from the first request to the last token."""

    async def run() -> Run:
        # A tiny model never ends an answer itself.
        options = ReplayOptions(token_ids=(10, 200), known_lengths=True)
        return await replay(trace, await find_target(server.url), options)

    server.resume()
    measured = asyncio.run(run())
    server.pause()
    errors = measured.requests["error"].drop_null().to_pylist()
    assert not errors, errors
    return float(measured.tokens.num_rows / pc.max(measured.tokens["time_s"]).as_py())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--streams", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=250)
    parser.add_argument("--again", action="store_true", help="stock against stock")
    options = parser.parse_args()
    trace = burst(options.streams, options.tokens)
    memory = ["--max-total-tokens", str(4 * options.streams * (options.tokens + 64))]
    second = [] if options.again else ["--scheduler", "tokenflow"]
    with tempfile.TemporaryDirectory() as scratch:
        model = make_tiny_model(Path(scratch) / "model", arch="llama")
        with (
            SglangServer(model, memory, env=ENV, log_path=Path(scratch) / "stock.log") as stock,
            SglangServer(
                model, [*memory, *second], env=ENV, log_path=Path(scratch) / "ours.log"
            ) as ours,
        ):
            for server in (stock, ours):
                throughput(server, trace)
            ratios = []
            for pair in range(options.pairs):
                order = (stock, ours) if pair % 2 == 0 else (ours, stock)
                rates = {server.url: throughput(server, trace) for server in order}
                ratios.append(rates[ours.url] / rates[stock.url])
                print(
                    f"pair {pair + 1:2d}: stock {rates[stock.url]:7.1f} tokens/s, "
                    f"second {rates[ours.url]:7.1f}, ratio {ratios[-1]:.4f}",
                    flush=True,
                )
            low, middle, high = statistics.quantiles(ratios, n=4)
            print(f"ratio: median {middle:.4f}, quartiles {low:.4f} to {high:.4f}")


if __name__ == "__main__":
    main()
