"""Runs under SGLang's own settings and under one flag, with a device's own memory."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from compared import DEFAULTS, TOKENFLOW

from tokenflow_sgl.host_pool import raised_ratio
from tokenflow_sgl.lab.profiles import DeviceProfile, load_profile
from tokenflow_sgl.lab.profiles.pool import chunked_prefill_size
from tokenflow_sgl.lab.report import figures
from tokenflow_sgl.lab.runs import Run
from tokenflow_sgl.lab.sim import EngineOptions, Simulation
from tokenflow_sgl.lab.sim.study.goal import parse_goal

ROOT = Path(__file__).resolve().parents[2]
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


def opened(path: Path) -> dict[str, Any]:
    """What the file has of this code, else nothing, with what this call is."""
    data = json.loads(path.read_text()) if path.exists() else {}
    code = commit()
    if data.get("commit") != code:
        data = {"commit": code}
    names = [Path(part).name for part in sys.argv]  # no paths of this machine
    script = Path(sys.argv[0]).resolve().relative_to(ROOT)
    return data | {
        "command": shlex.join(["python", str(script), *names[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "served_well": str(GOAL),
        "settings": described(),
    }


def commit() -> str:
    """The last commit that changed the package; marked if the code differs from it."""

    def git(*command: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *command], capture_output=True, text=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "tokenflow_sgl")
    last = git("log", "-1", "--format=%h", "--", "tokenflow_sgl")
    return last + ("-dirty" if changed else "")


def described() -> dict[str, dict[str, Any]]:
    """`SETTINGS` as the files of results have them."""
    return {name: {"policy": policy, **more} for name, (policy, more) in SETTINGS.items()}


def save(data: dict[str, Any], path: Path) -> None:
    """Write the file; a run that is killed meanwhile leaves the old one."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(data, indent=1) + "\n")
    part.replace(path)


def machine(device: str, model: str, **settings: Any) -> tuple[DeviceProfile, EngineOptions]:
    """A device's profile, and what one flag makes of its memory; more of SGLang's settings."""
    profile = load_profile(device, model)
    plain: dict[str, Any] = {
        "max_total_tokens": profile.kv_pool_tokens,
        "host_tokens": profile.host_pool_tokens,
        "chunked_prefill_size": chunked_prefill_size(profile.device_memory),
    }
    return profile, EngineOptions(**{**plain, **settings})


def with_one_flag(profile: DeviceProfile, options: EngineOptions) -> EngineOptions:
    """The options with the host's pool of a server of one device, if its machine has the memory."""
    ratio = raised_ratio(profile.kv_bytes_per_token * options.max_total_tokens)
    return replace(options, host_tokens=int(ratio * options.max_total_tokens))


def read(simulation: Simulation) -> dict[str, float]:
    """What the tables need of a simulated run, and how often a stream was retracted."""
    return felt(simulation.run) | {"retracted": simulation.retracted}


def felt(run: Run) -> dict[str, float]:
    """What the tables need of a run; seconds, tokens per second, and shares of the readers."""
    found = figures(run)
    latency, readers = found.latency, found.readers
    return {
        "requests": len(run.requests),
        "ttft_mean": latency.ttft.mean,
        "ttft_p99": latency.ttft.p99,
        "stalled_share": readers.stalled_share,
        "stall_seconds": readers.stall_seconds,
        "served_well": float(GOAL.met(run).mean()),
        "e2e_mean": latency.e2e.mean,
        "tbt_p99": latency.tbt.p99,
        "tokens_per_s": found.throughput.token,
        "effective_tokens_per_s": found.throughput.effective,
    }
