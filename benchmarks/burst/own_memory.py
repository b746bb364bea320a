"""What one flag gives: the device's own memory, against the best of SGLang's own settings.

    python benchmarks/burst/own_memory.py --azure AzureLLMInferenceTrace_conv.csv \\
        --mooncake conversation_trace.jsonl
    python benchmarks/burst/own_memory.py --tables

Simulated, with as many KV tokens as SGLang allocates on the device, HiCache's default of twice that
on the host, and unknown lengths. Each workload is drawn four times, and each draw is served under
SGLang's defaults, under its other settings (`SETTINGS`), and under tokenflow's. Takes about half an
hour; each run is written to benchmarks/results/own_memory.json as soon as it is there, and a later
call goes on from there while the code is the same. At the end it prints the table, and writes it
into README.md and docs/benchmarks.md; --tables does that alone, from the file.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from own_memory_tables import DATA, DEFAULTS, TOKENFLOW, short_table, write_tables
from rich.console import Console
from run import commit

from tokenflow_sgl.cli.chosen_trace import open_chosen
from tokenflow_sgl.profiles import load_profile
from tokenflow_sgl.profiles.pool import chunked_prefill_size
from tokenflow_sgl.report import figures
from tokenflow_sgl.sim import EngineOptions, Simulation, simulate
from tokenflow_sgl.sim.study.goal import parse_goal

MODEL = "llama3-8b"
RATE = "20"
"""Tokens per second of the readers of real traces, as of the named workloads."""
GOAL = parse_goal("ttft<=2,stall<=0.5")
"""What serves a reader well."""
SMALL_CHUNK: dict[str, Any] = {"enable_mixed_chunk": True, "chunked_prefill_size": 2048}
LITTLE: dict[str, Any] = {"schedule_conservativeness": 0.3}
CLIPPED: dict[str, Any] = {"clip_max_new_tokens": 1024}

SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    DEFAULTS: ("fcfs", {}),
    "HiCache": ("fcfs-hicache", {}),
    "lpm": ("lpm", {}),
    "hrrn": ("hrrn", {}),
    "shortest prefill": ("shortest-prefill", {}),
    "mixed chunks of 2,048": ("fcfs", SMALL_CHUNK),
    "prefill interval 22": ("prefill-interval", {}),
    "conservativeness 0.3": ("fcfs", LITTLE),
    "conservativeness 0.1": ("fcfs", {"schedule_conservativeness": 0.1}),
    "reserve of 1,024": ("fcfs", CLIPPED),
    "hrrn, HiCache": ("hrrn-hicache", {}),
    "hrrn, mixed chunks": ("hrrn", SMALL_CHUNK),
    "hrrn, conservativeness 0.3": ("hrrn", LITTLE),
    "hrrn, reserve of 1,024": ("hrrn", CLIPPED),
    "shortest prefill, mixed chunks": ("shortest-prefill", SMALL_CHUNK),
    TOKENFLOW: ("tokenflow", {}),
}
"""By name: the simulator's policy, and SGLang's settings on top of its defaults."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What is served, and on what.

    Attributes:
        device: Simulated device.
        draws: By draw, the first one for the tables: the trace, and the part of it (`--window`).
        speed_up: How much faster it is sent than it was recorded.
        rate: Tokens per second of its readers; None: as the trace says.
    """

    device: str
    draws: tuple[tuple[str, str | None], ...]
    speed_up: float | None = None
    rate: str | None = None


def workloads(azure: str | None, mooncake: str | None) -> dict[str, Workload]:
    """The paper's eight, and the real traces whose files are given.

    Draws of a named workload have other seeds; of Mooncake, other ten minutes; of Azure, a third of
    the hour.
    """
    found = {}
    for device, short in (("h200", "h200"), ("rtx4090", "4090")):
        for letter in "abcd":
            name = f"{short}-{letter}"
            draws = (name, *(f"{name}?seed={seed}" for seed in (1, 2, 3)))
            found[name] = Workload(device, tuple((draw, None) for draw in draws))
    if mooncake:
        parts = (f"{start}:600" for start in (0, 600, 1200, 1800))
        spec = f"mooncake:{mooncake}"
        found["mooncake"] = Workload("h200", tuple((spec, part) for part in parts), rate=RATE)
    if azure:
        parts = (None, "0:1200", "1200:1200", "2400:1200")
        for name, speed_up in (("azure-4x", 4.0), ("azure-1x", None)):
            draws = tuple((f"azure:{azure}", part) for part in parts)
            found[name] = Workload("h200", draws, speed_up, RATE)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--azure", metavar="FILE", help="conversation trace")
    parser.add_argument("--mooncake", metavar="FILE", help="conversation trace")
    parser.add_argument("--tables", action="store_true", help="only write the tables again")
    given = parser.parse_args()
    if not given.tables:
        measure(workloads(given.azure, given.mooncake))
    data = json.loads(DATA.read_text())
    write_tables(data)
    print(short_table(data))


def measure(chosen: dict[str, Workload]) -> None:
    """Run what the file does not have yet of this code, first draws first."""
    data = json.loads(DATA.read_text()) if DATA.exists() else {}
    code = commit()
    if data.get("commit") != code:
        data = {"commit": code}
    names = [Path(part).name for part in sys.argv]  # no paths of this machine
    data |= {
        "command": shlex.join(["python", f"benchmarks/burst/{names[0]}", *names[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "model": MODEL,
        "served_well": str(GOAL),
        "settings": {name: _described(*what) for name, what in SETTINGS.items()},
    }
    found = data.setdefault("workloads", {})
    for number in range(max(len(load.draws) for load in chosen.values())):
        for name, load in chosen.items():
            kept = found.setdefault(name, _machine(load))
            for setting in SETTINGS:
                runs = kept["draws"].setdefault(str(number), {})
                if setting not in runs:
                    started = time.monotonic()
                    runs[setting] = run(load, number, setting)
                    _save(data)
                    print(f"{name} {number} {setting}: {time.monotonic() - started:.0f} s")


def _described(policy: str, settings: dict[str, Any]) -> dict[str, Any]:
    return {"policy": policy, **settings}


def _machine(load: Workload) -> dict[str, Any]:
    profile, options = machine(load.device)
    return {
        "device": load.device,
        "kv_tokens": options.max_total_tokens,
        "host_tokens": options.host_tokens,
        "host_gb": options.host_tokens * profile.kv_bytes_per_token / 1e9,
        "draws": {},
    }


def _save(data: dict[str, Any]) -> None:
    """Write the file; a run that is killed meanwhile leaves the old one."""
    part = DATA.with_suffix(".part")
    part.write_text(json.dumps(data, indent=1) + "\n")
    part.replace(DATA)


def machine(device: str, **settings: Any) -> tuple[Any, EngineOptions]:
    """A device's profile, and what one flag makes of its memory; more of SGLang's settings."""
    profile = load_profile(device, MODEL)
    plain: dict[str, Any] = {
        "max_total_tokens": profile.kv_pool_tokens,
        "host_tokens": profile.host_pool_tokens,
        "chunked_prefill_size": chunked_prefill_size(profile.device_memory),
    }
    return profile, EngineOptions(**{**plain, **settings})


def run(load: Workload, draw: int, setting: str) -> dict[str, float]:
    """One run's figures."""
    policy, settings = SETTINGS[setting]
    spec, window = load.draws[draw]
    trace = open_chosen(
        spec,
        Console(stderr=True),
        seed=0,
        window=window,
        speed_up=load.speed_up,
        rate=load.rate,
    )
    return read(simulate(trace, *machine(load.device, **settings), policy=policy))


def read(simulation: Simulation) -> dict[str, float]:
    """What the tables need of a run; seconds, tokens per second, and shares of the readers."""
    found = figures(simulation.run)
    latency, readers = found.latency, found.readers
    return {
        "requests": len(simulation.run.requests),
        "ttft_mean": latency.ttft.mean,
        "ttft_p99": latency.ttft.p99,
        "stalled_share": readers.stalled_share,
        "stall_seconds": readers.stall_seconds,
        "served_well": float(GOAL.met(simulation.run).mean()),
        "e2e_mean": latency.e2e.mean,
        "tbt_p99": latency.tbt.p99,
        "tokens_per_s": found.throughput.token,
        "effective_tokens_per_s": found.throughput.effective,
        "retracted": simulation.retracted,
    }


if __name__ == "__main__":
    main()
