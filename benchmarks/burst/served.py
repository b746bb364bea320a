"""Runs under SGLang's own settings and under one flag, with a device's own memory."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tokenflow_sgl.lab.profiles import DeviceProfile, load_profile
from tokenflow_sgl.lab.profiles.pool import chunked_prefill_size
from tokenflow_sgl.lab.report.goal import parse_goal
from tokenflow_sgl.lab.runs import Run
from tokenflow_sgl.lab.sim import EngineOptions, Simulation
from tokenflow_sgl.lab.sim.study import own_settings

ROOT = Path(__file__).resolve().parents[2]
GOAL = parse_goal("ttft<=2,stall<=0.5")
"""What serves a reader well."""
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    name: (setting.policy, dict(setting.settings))
    for name, setting in own_settings.SETTINGS.items()
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


def read(simulation: Simulation) -> dict[str, float]:
    """What the tables need of a simulated run, and how often a stream was retracted."""
    return felt(simulation.run) | {"retracted": simulation.retracted}


def felt(run: Run) -> dict[str, float]:
    """What the tables need of a run; seconds, tokens per second, and shares of the readers."""
    return own_settings.felt(run, GOAL)
