"""Two emulated servers with tokenflow behind examples/headroom_proxy.py, with four ways to choose.

    python benchmarks/fleet/live.py            # both fleets, every router
    python benchmarks/fleet/live.py --fleet unlike --router headroom --dilation 4

Real SGLang on the wall clock: on a virtual clock a server is sent all requests at once, and a proxy
has no moment at which to choose. With a time dilation the devices, the scheduler's clock, the
client's arrivals and the proxy's readings are all so many times slower, so that a machine that is
busy keeps up. Each router gets two new servers and the very same requests; no server knows when an
answer ends. Takes four minutes for each router, times the dilation. Keeps the figures of each under
benchmarks/results/fleet and writes the table into README.md beside this file.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "burst"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from aiohttp import web
from fleet_tables import HEADS, cells, experienced, head, put
from headroom_proxy import Proxy, tokens_in
from run import INVALID, TOKENFLOW
from suite import CONTENDERS, SERVER

from tokenflow_sgl.choices import Router
from tokenflow_sgl.lab.demo.server import SglangServer, free_port
from tokenflow_sgl.lab.replay import find_target
from tokenflow_sgl.lab.replay.pace import pace
from tokenflow_sgl.lab.runs import read_run
from tokenflow_sgl.policy.routing import READ_EVERY

PAGE = Path(__file__).with_name("README.md")
RESULTS = Path(__file__).resolve().parents[1] / "results" / "fleet"
TRACE = "4090-c?duration=60"
WARM_UP = "35"
FLEETS = {
    "alike": (("rtx4090", 35_000), ("rtx4090", 35_000)),
    "unlike": (("rtx4090", 35_000), ("a6000", 100_000)),
}
"""Device and KV tokens of each server."""


ROUTERS = (Router.round_robin, Router.least_loaded, Router.lmetric, Router.headroom)
"""What is compared. Of an answer's length the proxy knows as little as the servers."""


class CountingProxy(Proxy):
    """Counts the requests of each server, and can choose without their headroom.

    Args:
        urls: Of the servers.
        router: Round robin; least loaded: the fewest requests under way; LMetric: the least product
            of the requests under way and the prompt tokens of those without a first token,
            the newcomer's among them; or headroom. The first of equals.
        read_every: Seconds between two readings.

    Attributes:
        sent: Requests by server.
    """

    def __init__(self, urls: list[str], router: str, read_every: float) -> None:
        super().__init__(urls, read_every)
        self.sent = [0] * len(urls)
        self._router = router
        self._turns = itertools.cycle(range(len(urls)))
        self._there = [0] * len(urls)
        self._to_prefill = [0.0] * len(urls)

    def _server_of(self, request: web.Request, body: bytes) -> int | None:
        """By the router; servers that end during a benchmark end it."""
        servers = range(len(self._there))
        if request.method != "POST" or self._router == Router.headroom:
            server = super()._server_of(request, body)
        elif self._router == Router.round_robin:
            server = next(self._turns)
        elif self._router == Router.least_loaded:
            server = min(servers, key=self._there.__getitem__)
        else:
            prompt = prompt_of(body)
            server = min(servers, key=lambda s: (self._to_prefill[s] + prompt) * self._there[s])
        if server is not None:
            self.sent[server] += request.method == "POST"
        return server

    @asynccontextmanager
    async def _asking(self, server: int, request: web.Request, body: bytes) -> AsyncIterator[Any]:
        """Count a request while it is under way, and its prompt until its first piece comes."""
        counted, left = int(request.method == "POST"), [prompt_of(body)]

        def begun() -> None:
            self._to_prefill[server] -= left[0]
            left[0] = 0.0

        self._there[server] += counted
        self._to_prefill[server] += left[0]
        try:
            async with super()._asking(server, request, body) as answer:
                yield Watched(answer, begun)
        finally:
            self._there[server] -= counted
            begun()


class Watched:
    """An answer whose first piece is told of.

    Args:
        answer: The answer.
        begun: Called with every piece.
    """

    def __init__(self, answer: Any, begun: Callable[[], None]) -> None:
        self._answer, self._begun = answer, begun
        self.content = self

    async def iter_any(self) -> AsyncIterator[bytes]:
        """The pieces as they come."""
        async for piece in self._answer.content.iter_any():
            self._begun()
            yield piece

    def __getattr__(self, name: str) -> Any:
        return getattr(self._answer, name)


def prompt_of(body: bytes) -> float:
    """Tokens of a request's prompt; 0 for a question."""
    return tokens_in(json.loads(body).get("input_ids")) if body else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fleet", choices=FLEETS, action="append", help="default: both")
    parser.add_argument("--router", choices=ROUTERS, action="append", help="default: all")
    parser.add_argument("--dilation", type=float, default=1.0, help="wall-clock s per emulated s")
    parser.add_argument("--output", type=Path, default=Path("burst-results/fleet"))
    given = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    given.output.mkdir(parents=True, exist_ok=True)
    for name, router in itertools.product(given.fleet or FLEETS, given.router or ROUTERS):
        found = run(name, router, given.dilation, given.output / f"{name}-{router}")
        kept = {"trace": TRACE, "servers": FLEETS[name], "dilation": given.dilation, **found}
        path = RESULTS / f"{name}-{router}.json"
        path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
        put(PAGE, "live", table())


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
    done = read_run(folder)
    return {
        "sent": sent,
        **experienced(done),
        "invalid": [*dict.fromkeys((*done.info.invalid, *lost))],
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
    """A row for each fleet and router that was measured."""
    lines = head("fleet", "router", "requests", *HEADS, words=2)
    for name, router in itertools.product(FLEETS, ROUTERS):
        path = RESULTS / f"{name}-{router}.json"
        if not path.exists():
            continue
        found = json.loads(path.read_text(encoding="utf-8"))
        doubt = " (invalid)" if found["invalid"] else ""
        lines.append(
            f"| {name} | {router}{doubt} | {' and '.join(map(str, found['sent']))} | "
            f"{cells(found)} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
