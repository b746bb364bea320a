"""What one flag gives on the machines and models that users have, simulated.

    python benchmarks/deployments/deployments.py
    python benchmarks/deployments/deployments.py --only rtx4090-chat --only h100x8-agents
    python benchmarks/deployments/deployments.py --tables

For each deployment (`deployed.py`): first the rate at which 99 % of the readers are served well,
under SGLang's defaults, its other settings (`COMPARED`) and tokenflow. Then the traffic at 0.7,
0.9, 1.1 and 1.5 times the rate of the defaults, under the same and under tokenflow with a host pool
of twice the device's, as large, and half as large. The device has the memory that SGLang gives KV
on it; no server knows the length of an answer. Each result is written to
benchmarks/results/deployments.json as soon as it is there, and a later call goes on from there
while the package is the same. At the end the tables are written into README.md; --tables does that
alone, from the file.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "burst"))

from compared import DEFAULTS, TOKENFLOW
from deployed import DEPLOYMENTS, TRAFFIC, Deployment
from deployments_tables import DATA, HOSTS, LOADS, SHARE, verdicts, write_tables
from served import GOAL, SETTINGS, machine, opened, read, save

from tokenflow_sgl.lab.profiles import DeviceProfile
from tokenflow_sgl.lab.sim import EngineOptions, simulate
from tokenflow_sgl.lab.sim.study.capacity_search import CapacitySetup, at_speed, capacity
from tokenflow_sgl.lab.sim.study.spread import Spread, on_cores

COMPARED = (
    DEFAULTS,
    "HiCache",
    "hrrn",
    "shortest prefill",
    "mixed chunks of 2,048",
    "conservativeness 0.3",
    "reserve of 1,024",
    "shortest prefill, mixed chunks",
)
"""SGLang's own settings, of `SETTINGS`; loads are multiples of the rate of the first."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One run of a deployment: what serves, and at how many times the trace's own arrivals."""

    setting: str
    speed: float

    def __str__(self) -> str:
        return f"{self.setting}, speed {self.speed:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", choices=DEPLOYMENTS, metavar="NAME", help="default: all"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes; default: 1")
    parser.add_argument("--tables", action="store_true", help="only write the tables again")
    given = parser.parse_args()
    if not given.tables:
        chosen = given.only or DEPLOYMENTS
        if given.workers == 1:
            measure(chosen, _here)
        else:
            with on_cores(given.workers) as spread:
                measure(chosen, spread)
    print("\n".join(verdicts(write_tables())))


def measure(chosen: Iterable[str], spread: Spread) -> None:
    """Search and run what the file does not have yet of this code and of these deployments."""
    data = opened(DATA) | {"share": SHARE}
    kept = data.setdefault("deployments", {})
    for name in chosen:
        deployment = DEPLOYMENTS[name]
        described = asdict(deployment) | {"served": TRAFFIC[deployment.traffic].title}
        if any(kept.get(name, {}).get(key) != value for key, value in described.items()):
            kept[name] = described | _memory(deployment) | {"capacity": {}, "loads": {}}
        found = kept[name]
        wanted = [each for each in (*COMPARED, TOKENFLOW) if each not in found["capacity"]]
        for setting, rate in _timed(name, wanted, spread(search, deployment, wanted)):
            found["capacity"][setting] = rate
            save(data, DATA)
        stock = found["capacity"][DEFAULTS]["speed"]
        if not stock:
            print(f"{name}: stock SGLang does not serve {SHARE:.0%} well at any rate", flush=True)
            continue
        for load in LOADS:
            runs = found["loads"].setdefault(load, {})
            asked = [
                Asked(setting, float(load) * stock)
                for setting in (*COMPARED, *HOSTS)
                if setting not in runs
            ]
            for job, found_run in _timed(name, asked, spread(run, deployment, asked)):
                runs[job.setting] = found_run
                save(data, DATA)


def search(deployment: Deployment, setting: str) -> dict[str, Any]:
    """The highest rate that a setting carries, as a multiple of the trace's and in requests/s."""
    policy, more = SETTINGS[setting]
    setup = CapacitySetup(
        (deployment.trace(),),
        *machine(deployment.device, deployment.model, **more),
        GOAL,
        SHARE,
        whole=False,
    )
    if setup.shortest_s < 3 * setup.read_s:
        raise ValueError(f"{deployment}: arrivals take less than reading three answers")
    [found] = capacity(setup, [policy], spread=_here)
    return {
        "speed": 0.0 if found.best is None else found.best.speed,
        "requests_per_s": found.rate,
        "tried": len(found.tried),
        "monotone": found.monotone,
        "unbounded": found.unbounded,
    }


def run(deployment: Deployment, asked: Asked) -> dict[str, float]:
    """One run's figures."""
    profile, options, policy = server(deployment, asked.setting)
    trace = at_speed(deployment.trace(), asked.speed)
    return read(simulate(trace, profile, options, policy=policy))


def server(deployment: Deployment, setting: str) -> tuple[DeviceProfile, EngineOptions, str]:
    """What serves: its device, SGLang's settings, and the simulator's policy."""
    policy, more = SETTINGS[TOKENFLOW if setting in HOSTS else setting]
    profile, options = machine(deployment.device, deployment.model, **more)
    if setting in HOSTS:
        host_tokens = int(HOSTS[setting] * options.max_total_tokens)
        options = replace(options, host_tokens=host_tokens)
    return profile, options, policy


def _memory(deployment: Deployment) -> dict[str, Any]:
    profile, options = machine(deployment.device, deployment.model)
    return {
        "kv_tokens": options.max_total_tokens,
        "kv_gb": options.max_total_tokens * profile.kv_bytes_per_token / 1e9,
        "source": profile.source,
    }


def _here(function: Callable[[Any, Any], Any], shared: Any, jobs: Sequence[Any]) -> Iterator[Any]:
    """In this process, one after the other."""
    return map(partial(function, shared), jobs)


def _timed(name: str, jobs: Sequence[Any], results: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    """Each job with its result, and a line on standard output for each."""
    started = time.monotonic()
    for job, result in zip(jobs, results, strict=True):
        now = time.monotonic()
        print(f"{name} {job}: {now - started:.0f} s", flush=True)
        started = now
        yield job, result


if __name__ == "__main__":
    main()
