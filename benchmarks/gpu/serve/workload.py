"""One workload in real time on one server, and what the simulator says of the very same server."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from journal import Figures, Journal, WrongError
from machine import Machine, paths_for_python

from tokenflow_sgl.lab.observe.metrics_page import Scrape, scrape
from tokenflow_sgl.lab.profiles import DeviceProfile
from tokenflow_sgl.lab.report import figures as figures_of
from tokenflow_sgl.lab.report.goal import parse_goal
from tokenflow_sgl.lab.runs import Run, read_run
from tokenflow_sgl.lab.sim import EngineOptions, simulate
from tokenflow_sgl.lab.sim.study import own_settings
from tokenflow_sgl.lab.traces import open_trace

CONTENDERS = {"stock": own_settings.DEFAULTS, "hrrn": "hrrn", "tokenflow": own_settings.TOKENFLOW}
"""Names of `own_settings.SETTINGS`."""
GOAL = parse_goal("ttft<=2,stall<=0.5")
RATIO = ("--hicache-ratio", "2")
"""KV tokens on the host over those on the device; with all of its memory as many as tokenflow finds
room for."""
MOST_WARM_UP = 200
ENDING_S = 60.0
"""Seconds that an interrupted replay may take to write what it has."""
GRACE_S = 30.0
INTERRUPTED = 130
REPLAY = "from tokenflow_sgl.cli import main; main()"


@dataclass(frozen=True, slots=True)
class Workload:
    """What is replayed.

    Attributes:
        trace: As `tokenflow replay` is given it.
        kv_tokens: Of the device; None: as many as SGLang finds room for.
    """

    trace: str
    kv_tokens: int | None

    @property
    def warm_up(self) -> int:
        """Requests that are sent before the measured ones."""
        return min((self.kv_tokens or 1000 * MOST_WARM_UP) // 1000, MOST_WARM_UP)


def measure(
    machine: Machine, journal: Journal, workload: Workload, contender: str, folder: Path
) -> Figures:
    """Start a server, replay, and read what readers felt.

    Raises:
        WrongError: The run is not valid, or the time was up before its end.
    """
    out = folder / "run"
    with machine.served(folder, contender, options(workload, contender)) as served:
        before = scrape(served.server.url)
        code = _replay(workload, contender, served.server.url, out, journal.minutes_left)
        counted = scrape(served.server.url).since(before)
        host = scrape(served.server.url).total("sglang:hicache_host_total_tokens")
    if not (out / "run.json").exists():
        raise RuntimeError(f"the replay ended with {code} and wrote no run")
    run = read_run(out)
    found: Figures = {"felt": felt(run), "server": told(run, host), "shares": shares(run, counted)}
    found |= {"workload": workload.trace, "warm_up": workload.warm_up, "contender": contender}
    found["counters"] = {
        name: total
        for name in counted.samples
        if name.endswith("_total") and (total := counted.total(name))
    }
    if code == INTERRUPTED:
        raise WrongError("the time was up before the replay's end", found)
    if code and not machine.toy:  # at toy size nothing is measured
        raise WrongError(f"no valid run: {'; '.join(figures_of(run).warnings)}", found)
    return found


def options(workload: Workload, contender: str) -> tuple[str, ...]:
    """SGLang's options of a contender."""
    memory = workload.kv_tokens
    return (
        *("--skip-tokenizer-init", "--incremental-streaming-output"),
        *own_settings.SETTINGS[CONTENDERS[contender]].flags.split(),
        *(RATIO if memory is not None and contender == "tokenflow" else ()),
        *(() if memory is None else ("--max-total-tokens", str(memory))),
    )


def _replay(workload: Workload, contender: str, url: str, out: Path, minutes_left: float) -> int:
    """Run `tokenflow replay`, interrupted when the time is up; its exit code."""
    command = [sys.executable, "-c", REPLAY, "replay", workload.trace, "--url", url]
    command += ["--output", str(out), "--name", contender]
    command += ["--warm-up-burst", str(workload.warm_up)]
    print(f"    {shlex.join(command[3:])}", flush=True)
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths_for_python()})
    left = None if minutes_left == float("inf") else 60.0 * minutes_left - ENDING_S - GRACE_S
    try:
        return process.wait(left if left is None else max(left, 1.0))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return INTERRUPTED


def felt(run: Run) -> dict[str, float]:
    """What readers feel: seconds, tokens per second, shares."""
    return {**own_settings.felt(run, GOAL), "tpot_mean": figures_of(run).latency.tpot.mean}


def told(run: Run, host_tokens: float) -> dict[str, Any]:
    """What of the server's settings the simulator has to know."""
    server: Mapping[str, Any] = (run.info.target or {}).get("server", {})
    names = ("max_total_num_tokens", "chunked_prefill_size", "page_size", "attention_backend")
    host = int(host_tokens) if host_tokens == host_tokens else 0
    return {**{name: server.get(name) for name in names}, "host_tokens": host}


def shares(run: Run, counted: Scrape) -> dict[str, float]:
    """Shares of the time of the run: of the scheduler's thread, and of the device; NaN: not told.

    The time is that until the last token. The counters have the warm-up burst, too, so shares are
    a little too large.
    """
    makespan = figures_of(run).throughput.makespan
    named = {
        "scheduler_cpu": "sglang:scheduler_process_cpu_seconds_total",
        "added_by_tokenflow": "scheduling_seconds_total",
        "device_busy": "sglang:forward_execution_seconds_total",
    }
    return {name: counted.total(metric) / makespan for name, metric in named.items()}


def simulated(found: Mapping[str, Any], profile: DeviceProfile) -> dict[str, float]:
    """What the simulator says readers feel of a server that was measured.

    Args:
        found: What `measure` returned.
        profile: The device's step times and links.
    """
    server = found["server"]
    options = EngineOptions(
        max_total_tokens=server["max_total_num_tokens"],
        host_tokens=server["host_tokens"],
        chunked_prefill_size=server["chunked_prefill_size"],
        page_size=server["page_size"] or 1,
    )
    policy = own_settings.SETTINGS[CONTENDERS[found["contender"]]].policy
    trace = open_trace(found["workload"])
    return felt(
        simulate(trace, profile, options, policy=policy, warm_up_burst=found["warm_up"]).run
    )
