"""Two emulated servers with tokenflow behind examples/headroom_proxy.py: round robin, headroom.

    python benchmarks/fleet/live.py            # both fleets
    python benchmarks/fleet/live.py --fleet alike

Real SGLang on the wall clock: on a virtual clock a server is sent all requests at once, and a proxy
has no moment at which to choose. Each router gets two new servers and the very same requests; no
server knows when an answer ends. Nothing else should run meanwhile. Takes five minutes for a fleet
and writes its table into README.md beside this file.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "burst"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from aiohttp import web
from headroom_proxy import Proxy
from run import INVALID, TOKENFLOW
from suite import CONTENDERS, SERVER

from tokenflow_sgl.choices import Router
from tokenflow_sgl.demo.server import SglangServer, free_port
from tokenflow_sgl.policy.routing import READ_EVERY
from tokenflow_sgl.replay import find_target
from tokenflow_sgl.replay.pace import pace
from tokenflow_sgl.report import figures
from tokenflow_sgl.runs import read_run

PAGE = Path(__file__).with_name("README.md")
RESULTS = Path(__file__).resolve().parents[1] / "results" / "fleet"
BEGIN, END = "<!-- live -->\n\n", "\n<!-- /live -->"
TRACE = "4090-c?duration=60"
WARM_UP = "35"
FLEETS = {
    "alike": (("rtx4090", 35_000), ("rtx4090", 35_000)),
    "unlike": (("rtx4090", 35_000), ("a6000", 100_000)),
}
"""Device and KV tokens of each server."""


class CountingProxy(Proxy):
    """Counts the requests of each server, and can send them round.

    Args:
        urls: Of the servers.
        router: Round robin or headroom.
        read_every: Seconds between two readings.
    """

    def __init__(self, urls: list[str], router: str, read_every: float) -> None:
        super().__init__(urls, read_every)
        self.sent = [0] * len(urls)
        self._turns = itertools.cycle(range(len(urls))) if router == Router.round_robin else None

    def choose(self, work: float) -> int | None:
        """By the router; servers that end during a benchmark end it."""
        server = super().choose(work) if self._turns is None else next(self._turns)
        if server is not None:
            self.sent[server] += 1
        return server


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fleet", choices=FLEETS, action="append", help="default: both")
    parser.add_argument("--dilation", type=float, default=1.0, help="wall-clock s per emulated s")
    parser.add_argument("--output", type=Path, default=Path("burst-results/fleet"))
    given = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    given.output.mkdir(parents=True, exist_ok=True)
    for name in given.fleet or FLEETS:
        runs = {
            router: run(name, router, given.dilation, given.output / f"{name}-{router}")
            for router in (Router.round_robin, Router.headroom)
        }
        kept = {"trace": TRACE, "servers": FLEETS[name], "dilation": given.dilation, "runs": runs}
        (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + BEGIN + table() + END + after, encoding="utf-8")


def run(fleet: str, router: str, dilation: float, folder: Path) -> dict[str, Any]:
    """Start the fleet, replay through the proxy, and return the figures."""
    print(f"\n{fleet}, {router}", flush=True)
    with ExitStack() as stack:
        servers = []
        for number, (device, kv_tokens) in enumerate(FLEETS[fleet]):
            launcher = [TOKENFLOW, "serve-emulated", "--device", device]
            server = SglangServer(
                None,
                ("--max-total-tokens", str(kv_tokens), *SERVER, *CONTENDERS["tokenflow"]),
                launcher=[*launcher, "--time-dilation", str(dilation), "--"],
                log_path=folder.with_suffix(f".{number}.log"),
            )
            servers.append(stack.enter_context(server).url)
        sent, lost = asyncio.run(replayed(servers, router, dilation, folder))
    judged = figures(read_run(folder))
    ttft, readers = judged.latency.ttft, judged.readers
    return {
        "sent": sent,
        "mean_ttft_s": ttft.mean,
        "p99_ttft_s": ttft.p99,
        "stall_mean_s": readers.stall_mean,
        "stalled_share": readers.stalled_share,
        "effective": judged.throughput.effective,
        "invalid": lost,
    }


async def replayed(
    servers: list[str], router: str, dilation: float, folder: Path
) -> tuple[list[int], list[str]]:
    """Requests of each server, and why the figures must not be trusted."""
    proxy = CountingProxy(servers, router, READ_EVERY * dilation)
    runner = web.AppRunner(proxy.app(), handler_cancellation=True)
    await runner.setup()
    try:
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        targets = [await find_target(url) for url in servers]
        command = [TOKENFLOW, "replay", TRACE, "--url", f"http://127.0.0.1:{port}"]
        command += ["--output", str(folder), "--name", router, "--warm-up-burst", WARM_UP]
        replay = await asyncio.create_subprocess_exec(*command)
        if (code := await replay.wait()) not in (0, INVALID):
            raise subprocess.CalledProcessError(code, command)
        lost = [sentence for target in targets for sentence in (await pace(target)).lost]
    finally:
        await runner.cleanup()
    return proxy.sent, lost


def table() -> str:
    """A row for each fleet that was measured, and router."""
    heads = ["fleet", "router", "requests", "mean TTFT, s", "P99 TTFT, s", "stall, s"]
    heads += ["readers that stall", "effective tokens/s"]
    lines = ["| " + " | ".join(heads) + " |", "| --- | --- |" + " ---: |" * (len(heads) - 2)]
    for path in (path for name in FLEETS if (path := RESULTS / f"{name}.json").exists()):
        for router, found in json.loads(path.read_text(encoding="utf-8"))["runs"].items():
            doubt = " (invalid)" if found["invalid"] else ""
            lines.append(
                f"| {path.stem} | {router}{doubt} | {' and '.join(map(str, found['sent']))} | "
                f"{found['mean_ttft_s']:.3f} | {found['p99_ttft_s']:.2f} | "
                f"{found['stall_mean_s']:.3f} | {found['stalled_share']:.1%} | "
                f"{found['effective']:,.0f} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
