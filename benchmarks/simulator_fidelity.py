"""How far the simulator is from real SGLang on the emulated device.

    python benchmarks/simulator_fidelity.py

Simulates what `benchmarks/burst/run.py` measured: same trace, device and settings; and sets
the figures side by side. Reads benchmarks/results/burst/; runs no server.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from burst.suite import CONTENDERS, LOADS, MODEL
from rich.console import Console
from rich.table import Table

from tokenflow_sgl.profiles import load_profile
from tokenflow_sgl.profiles.pool import chunked_prefill_size
from tokenflow_sgl.report import figures
from tokenflow_sgl.report.export import run_object
from tokenflow_sgl.sim import EngineOptions, simulate
from tokenflow_sgl.traces import open_trace

RESULTS = Path(__file__).parent / "results" / "burst"
FIGURES = {
    "effective tokens/s": ("effective_throughput",),
    "tokens/s": ("token_throughput",),
    "mean TTFT, s": ("ttft_s", "mean"),
    "P99 TTFT, s": ("ttft_s", "p99"),
    "mean TPOT, ms": ("tpot_s", "mean"),
    "stall, s": ("stall_per_request_s", "mean"),
}
SIMULATED = ("stock", "tokenflow")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    rows = []
    for path in sorted(RESULTS.glob("*.json")):
        kept = json.loads(path.read_text())
        for name in SIMULATED:
            run = kept["runs"].get(name)
            if run is None or not run["run"]["valid"] or "FILE" in LOADS[path.stem].trace:
                continue
            rows.append([path.stem, name, *_compare(kept, run, name)])
    heads = ["workload", "run", *FIGURES]
    if args.markdown:
        print("| " + " | ".join(heads) + " |")
        print("| --- | --- |" + " ---: |" * len(FIGURES))
        for row in rows:
            print("| " + " | ".join(row) + " |")
        return
    table = Table(title="simulated, and its difference from measured")
    for head in heads:
        table.add_column(head)
    for row in rows:
        table.add_row(*row)
    Console(width=150).print(table)


def _compare(kept: dict[str, Any], measured: dict[str, Any], name: str) -> list[str]:
    profile = load_profile(kept["device"], MODEL)
    device_tokens = kept["kv_tokens"]
    options = CONTENDERS[name]
    ratio = float(options[options.index("--hicache-ratio") + 1]) if name == "tokenflow" else 0.0
    simulation = simulate(
        open_trace(measured["replay"][0]),
        profile,
        EngineOptions(
            max_total_tokens=device_tokens,
            host_tokens=int(ratio * device_tokens),
            chunked_prefill_size=chunked_prefill_size(profile.device_memory),
        ),
        policy=name,
    )
    simulated = run_object(figures(simulation.run))["tokenflow"]
    return [_cell(simulated, measured["tokenflow"], keys) for keys in FIGURES.values()]


def _cell(simulated: Any, measured: Any, keys: tuple[str, ...]) -> str:
    for key in keys:
        simulated, measured = simulated[key], measured[key]
    scale = 1000.0 if keys[0] == "tpot_s" else 1.0
    shown = f"{simulated * scale:,.2f}"
    # Of a stall of a few milliseconds a ratio says nothing.
    return (
        shown if measured < 0.1 and scale == 1.0 else f"{shown} ({simulated / measured - 1:+.1%})"
    )


if __name__ == "__main__":
    main()
