"""Two simulated servers that are unlike behind each router: the live fleet, over several draws.

    python benchmarks/fleet/unlike.py

What live.py serves with real SGLang, on devices that are only numbers: so no other work on the
machine shows, and the workload can be drawn several times. Each run is kept under
benchmarks/results/fleet/unlike-simulated.json; one that is there is not repeated unless --again.
Writes its table into README.md beside this file.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
from fleet_tables import experienced, put
from live import FLEETS, TRACE

from tokenflow_sgl.lab.profiles import load_profile
from tokenflow_sgl.lab.sim import EngineOptions, simulate
from tokenflow_sgl.lab.sim.cluster import ROUTERS
from tokenflow_sgl.lab.traces import open_trace

PAGE = Path(__file__).with_name("README.md")
RESULTS = Path(__file__).resolve().parents[1] / "results" / "fleet" / "unlike-simulated.json"
MODEL, HOST_RATIO = "llama3-8b", 8
Found = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=8, help="of the workload; default: 8")
    parser.add_argument("--again", action="store_true", help="repeat what is kept")
    given = parser.parse_args()
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for seed, router in itertools.product(range(given.draws), ROUTERS):
        name = f"{router} {seed}"
        if given.again or name not in kept:
            kept[name] = run(str(router), seed)
            print(name, f"P99 TTFT {kept[name]['p99_ttft_s']:.2f} s", flush=True)
            RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    put(PAGE, "unlike", table(kept))


def run(router: str, seed: int) -> Found:
    """One draw behind one router."""
    (profile, options), *beside = (
        (
            load_profile(device, MODEL),
            EngineOptions(max_total_tokens=tokens, host_tokens=HOST_RATIO * tokens),
        )
        for device, tokens in FLEETS["unlike"]
    )
    trace = open_trace(f"{TRACE}&seed={seed}")
    done = simulate(trace, profile, options, beside=beside, router=router)
    return experienced(done.run)


def table(kept: dict[str, Found]) -> str:
    """A row for each router: means over the draws, and the range of P99 TTFT."""
    heads = ["router", "draws", "mean TTFT, s", "P99 TTFT, s", "of the draws", "stall, s"]
    heads += ["readers that stall", "effective tokens/s"]
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) - 1)]
    for router in ROUTERS:
        draws = [found for name, found in kept.items() if name.rpartition(" ")[0] == router]
        mean = {field: float(np.mean([each[field] for each in draws])) for field in draws[0]}
        tails = [each["p99_ttft_s"] for each in draws]
        lines.append(
            f"| {router} | {len(draws)} | {mean['mean_ttft_s']:.2f} | {mean['p99_ttft_s']:.1f} | "
            f"{min(tails):.1f} to {max(tails):.1f} | {mean['stall_mean_s']:.3f} | "
            f"{mean['stalled_share']:.1%} | {mean['effective']:,.0f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
