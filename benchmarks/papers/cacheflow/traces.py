"""Conversations and agents on one simulated device: stock HiCache with a storage, and ours.

    python benchmarks/papers/cacheflow/traces.py FOLDER

FOLDER has the files of `LOADS` (docs/traces.md says where they come from); those that are absent
are named and left out. SGLang's own scheduling serves each trace; device and host are small enough
that KV leaves both between two turns. Writes a table of README.md beside this file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from tokenflow_sgl.lab.profiles import DeviceProfile, load_profile
from tokenflow_sgl.lab.profiles.pool import chunked_prefill_size
from tokenflow_sgl.lab.sim import EngineOptions, Simulation, simulate
from tokenflow_sgl.lab.traces import Trace, open_trace
from tokenflow_sgl.lab.traces.transform import fit_context, limit

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "burst"))

from run import commit
from table import replace_table

PAGE = Path(__file__).with_name("README.md")
DEVICE, MODEL = "h100", "llama3-8b"
LONGEST = 50_000
"""Tokens of prompt and answer: half of the host pool, which is what a prefetch may take."""
LINKS = (10.0, 40.0)
"""Gbit/s."""


@dataclass(frozen=True)
class Load:
    """A trace: its file, how it is read, and KV tokens of the device, and as many of the host."""

    file: str
    spec: str
    memory: int


AGENTS = "swe_agent/mini_swe_agent_gemini3pro_calls.csv"
REQUESTS = 3000
"""Of each trace, its sessions whole."""
LOADS: Mapping[str, Load] = {
    "agents": Load(AGENTS, "agent:{path}?think=gap&arrivals=poisson&rate=0.04", 200_000),
    "agents, memory short": Load(
        AGENTS, "agent:{path}?think=gap&arrivals=poisson&rate=0.02", 100_000
    ),
    "conversations": Load(
        "sharegpt_lengths/sharegpt_8k_filtered_stats_llama2_tokenizer.csv",
        "sharegpt:{path}?arrivals=poisson&rate=1&think=60",
        100_000,
    ),
}
SYSTEMS: Mapping[str, Mapping[str, str]] = {
    "best_effort": {"hicache_storage_prefetch_policy": "best_effort"},
    "timeout": {"hicache_storage_prefetch_policy": "timeout"},
    "wait_complete": {"hicache_storage_prefetch_policy": "wait_complete"},
    "ours": {"restore": "auto"},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    profile = load_profile(DEVICE, MODEL)
    lines = [
        f"Commit {commit()}.\n",
        "| trace | Gbit/s | system | mean TTFT, s | P50 | P99 | tokens fetched | computed beside |",
        "| --- | ---: | --- |" + " ---: |" * 5,
    ]
    for name, load in LOADS.items():
        path = folder / load.file
        if not path.exists():
            Console(stderr=True).print(f"{name}: {path} is absent, left out", soft_wrap=True)
            continue
        trace = limit(fit_context(open_trace(load.spec.format(path=path)), LONGEST), REQUESTS)
        lines.append(row(name, "", "no storage", run(trace, profile, load.memory)))
        for gbps in LINKS:
            for system, settings in track(SYSTEMS.items(), f"{name}, {gbps:g} Gbit/s"):
                found = run(trace, profile, load.memory, storage_gbps=gbps, **settings)
                lines.append(row(name, f"{gbps:g}", system, found))
    PAGE.write_text(replace_table(PAGE.read_text(), "traces", "\n".join(lines) + "\n"))


def run(trace: Trace, profile: DeviceProfile, memory: int, **settings: object) -> Simulation:
    """Serve a trace under stock SGLang's scheduling with HiCache."""
    options = EngineOptions(
        max_total_tokens=memory,
        host_tokens=memory,
        page_size=64,
        chunked_prefill_size=chunked_prefill_size(profile.device_memory),
        **settings,
    )
    return simulate(trace, profile, options, policy="fcfs-hicache")


def row(name: str, link: str, system: str, simulation: Simulation) -> str:
    """A line of the table."""
    requests, tokens = simulation.run.requests, simulation.run.tokens
    owner, times = tokens["request"].to_numpy(), tokens["time_s"].to_numpy()
    _, begins = np.unique(owner, return_index=True)
    waited = times[begins] - requests["sent_s"].to_numpy()
    storage = simulation.storage
    cells = [name, link, system, f"{waited.mean():.3f}"]
    cells += [f"{np.quantile(waited, share):.3f}" for share in (0.5, 0.99)]
    cells += [f"{storage.fetched:,}", f"{storage.heads:,}"]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
