"""Two emulated servers behind a gateway that people use, stock and with tokenflow.

    python benchmarks/fleet/behind_gateways.py --azure AzureLLMInferenceTrace_conv.csv
    python benchmarks/fleet/behind_gateways.py --load burst --gateway "smg, least_load"

Real SGLang behind the gateway's own program, on the wall clock: a gateway looks at its servers once
a second and chooses when a request comes. With a time dilation the devices, the client's arrivals
and the gateway's looks are all so many times slower; below 1 the looks stay at a second, so they
are rarer. Each row gets two new servers of the device's own memory and default flags, and the very
same requests; no server knows when an answer ends. Keeps the figures of each row under
benchmarks/results/fleet/gateways, and writes the table into docs/fleet.md. A row that is there is
not run again unless --again.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import shutil
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "burst"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "helpers"))

from fleet_tables import HEADS, cells, experienced, head, put
from gateways.shepherd import shepherd
from run import STARTUP_S, TOKENFLOW

from tokenflow_sgl.lab.demo.server import SglangServer, running
from tokenflow_sgl.lab.replay import ReplayOptions, find_target, replay
from tokenflow_sgl.lab.replay.pace import pace
from tokenflow_sgl.lab.replay.steady import allow_many_files, new_event_loop
from tokenflow_sgl.lab.runs import read_run, write_run
from tokenflow_sgl.lab.traces import Trace, open_trace

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "fleet.md"
RESULTS = ROOT / "benchmarks" / "results" / "fleet" / "gateways"
WARM_UP = 35
"""Requests before the clock starts: who has served nothing does not know what its steps cost."""
RETRIES = r"smg_(?:worker_retries|router_upstream_send_retries)_total"
SERVERS = {"stock": (), "tokenflow": ("--scheduler", "tokenflow")}
SERVER = ("--enable-metrics", "--incremental-streaming-output", "--sleep-on-idle")
"""What both are started with: figures, and each piece of an answer once."""
GATEWAYS = {
    "smg, round_robin": ("--policy", "round_robin"),
    "smg, power_of_two": ("--policy", "power_of_two"),
    "smg, least_load": ("--policy", "least_load"),
    "smg, cache_aware": ("--policy", "cache_aware"),
    "smg, least_load, shed": ("--policy", "least_load", "--worker-overload-shed"),
}
"""What is compared: the gateway and its options. smg's overload protection is on by default."""


@dataclass(frozen=True, slots=True)
class Load:
    """What both servers get.

    Attributes:
        trace: As `open_trace` takes it; FILE stands for the user's.
        device: Of each server.
        dilation: Wall-clock seconds per emulated second.
    """

    trace: str
    device: str
    dilation: float


LOADS = {
    "burst": Load("4090-a", "rtx4090", 1.0),
    # What two of four servers get of 18 times the trace.
    "azure": Load("azure:FILE?start=0&duration=540&speed=9&readers=20", "h200", 5.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--azure", type=Path, help="AzureLLMInferenceTrace_conv.csv")
    parser.add_argument("--load", choices=LOADS, action="append", help="default: all")
    parser.add_argument("--gateway", choices=GATEWAYS, action="append", help="default: all")
    parser.add_argument("--server", choices=SERVERS, action="append", help="default: both")
    parser.add_argument("--dilation", type=float, help="instead of the load's")
    parser.add_argument("--again", action="store_true", help="run rows again that are there")
    parser.add_argument("--output", type=Path, default=Path("burst-results/gateways"))
    given = parser.parse_args()
    loads = given.load or [name for name in LOADS if name != "azure" or given.azure]
    if "azure" in loads and given.azure is None:
        parser.error("azure needs --azure FILE")
    RESULTS.mkdir(parents=True, exist_ok=True)
    given.output.mkdir(parents=True, exist_ok=True)
    rows = itertools.product(loads, given.gateway or GATEWAYS, given.server or SERVERS)
    for name, gateway, server in rows:
        path = kept(name, gateway, server)
        if path.exists() and not given.again:
            continue
        load = LOADS[name]
        load = replace(load, dilation=given.dilation or load.dilation)
        trace = open_trace(load.trace.replace("FILE", str(given.azure)))
        found = run(load, trace, gateway, server, given.output / path.stem)
        found = {"trace": load.trace, "device": load.device, "dilation": load.dilation, **found}
        path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        put(PAGE, "gateways", table())


def kept(load: str, gateway: str, server: str) -> Path:
    """The file of a row."""
    return RESULTS / f"{load}-{gateway.replace(', ', '-')}-{server}.json"


def run(load: Load, trace: Trace, gateway: str, server: str, folder: Path) -> dict[str, Any]:
    """Start two servers and the gateway, replay through it, and return the figures."""
    print(f"\n{trace.name}: {gateway}, {server}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    with fleet(load, SERVERS[server], folder) as urls:
        looks = ("--load-monitor-interval", str(max(1, round(load.dilation))))
        with shepherd(folder.parent, urls, *GATEWAYS[gateway], *looks) as front:
            before = [requests_of(url) for url in urls]
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                lost = runner.run(replayed(trace, urls, front.url, folder))
            sent = [requests_of(url) - count for url, count in zip(urls, before, strict=True)]
            retried = total(front.metrics, RETRIES)
    done = read_run(folder)
    errors = [error for error in done.requests["error"].to_pylist() if error]
    return {
        "requests": len(trace.requests),
        "sent": sent,
        "retried": retried,
        "refused": sum("503" in error for error in errors),
        "failed": len(errors),
        **experienced(done),
        "invalid": [*dict.fromkeys((*filter(told, done.info.invalid), *lost))],
    }


@contextmanager
def fleet(load: Load, flags: Sequence[str], folder: Path) -> Iterator[list[str]]:
    """The addresses of two servers of a device's own memory."""
    launcher = [TOKENFLOW, "serve-emulated", "--device", load.device]
    servers = [
        SglangServer(
            None,
            (*SERVER, *flags),
            launcher=[*launcher, "--time-dilation", str(load.dilation), "--"],
            log_path=folder.with_suffix(f".{number}.log"),
            startup_timeout_s=STARTUP_S,
        )
        for number in range(2)
    ]
    with running(servers):
        yield [server.url for server in servers]


async def replayed(trace: Trace, servers: list[str], gateway: str, folder: Path) -> list[str]:
    """Why the figures must not be trusted, after a replay through the gateway.

    What the servers are, and whether they kept their pace, is asked of themselves: the gateway does
    not pass such questions on.
    """
    allow_many_files()
    targets = [await find_target(url) for url in servers]
    front = replace(targets[0], url=gateway)
    options = ReplayOptions(name=folder.name, warm_up_burst=WARM_UP)
    write_run(folder, await replay(trace, front, options))
    return [sentence for target in targets for sentence in (await pace(target)).lost]


def told(reason: str) -> bool:
    """Whether a reason against a run is one; that the gateway does not tell the pace is none."""
    return not reason.startswith("The server did not say afterwards")


def requests_of(url: str) -> int:
    """Requests that a server has ended."""
    return total(f"{url}/metrics", r"sglang:num_requests_total")


def total(page: str, name: str) -> int:
    """Sum of a counter over its labels; 0 where there is none yet."""
    with urllib.request.urlopen(page, timeout=30) as answer:
        text = answer.read().decode()
    return round(sum(map(float, re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))))


def table() -> str:
    """A row for each that was measured."""
    columns = ("load", "gateway", "servers", "requests", *HEADS, "refused", "retried", "dilation")
    lines = head(*columns, words=3)
    for name, gateway, server in itertools.product(LOADS, GATEWAYS, SERVERS):
        path = kept(name, gateway, server)
        if not path.exists():
            continue
        found = json.loads(path.read_text(encoding="utf-8"))
        doubt = " (invalid)" if found["invalid"] else ""
        lines.append(
            f"| {name} | {gateway} | {server}{doubt} | {' and '.join(map(str, found['sent']))} | "
            f"{cells(found)} | {found['refused']} | {found['retried']} | "
            f"{found['dilation']:g} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
