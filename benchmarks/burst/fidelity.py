"""How far the simulator is from real SGLang on the emulated device.

    python benchmarks/burst/fidelity.py --azure AzureLLMInferenceTrace_conv.csv

Simulates what `run.py` measured with stock SGLang and tokenflow, with the same settings, and
writes the differences into docs/simulate.md. Reads benchmarks/results/burst/; runs no server. What
was measured on a trace whose file is not given (--azure, --mooncake) is left out, aloud. The
simulated server knows of the answers' lengths what the measured one knew, also from its warm-up
burst.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.progress import track
from run import KNOWN, PAIR, RESULTS, ROOT, warm_up_burst
from simulated import simulated
from suite import LOADS, PAGED
from table import knew_lengths, label, replace_table

PAGE = ROOT / "docs" / "simulate.md"
FIGURES = {
    "effective tokens/s": ("effective_throughput",),
    "tokens/s": ("token_throughput",),
    "mean TTFT, s": ("ttft_s", "mean"),
    "P99 TTFT, s": ("ttft_s", "p99"),
    "mean TPOT, ms": ("tpot_s", "mean"),
    "stall, s": ("stall_per_request_s", "mean"),
}
SMALL_STALL = 0.1
"""Seconds; of less, a relative difference says nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--azure", metavar="FILE", help="trace of azure-2x and azure-4x")
    parser.add_argument("--mooncake", metavar="FILE", help="trace of mooncake")
    given = parser.parse_args()
    files = {"azure": given.azure, "mooncake": given.mooncake}
    lines = ["| workload | run | " + " | ".join(FIGURES) + " | commit |"]
    lines.append("| --- | --- |" + " ---: |" * len(FIGURES) + " --- |")
    for workload, name, measured in track(_measured(), description="simulating"):
        trace = measured["replay"][0]
        if "FILE" in LOADS[workload].trace:
            if not files[trace]:
                print(f"{workload}, {name}: left out, its trace is not given")
                continue
            trace = f"{trace}:{files[trace]}"
        policy, _, page_size = name.removesuffix(KNOWN).partition(", pages of ")
        load = LOADS[workload]
        found = simulated(
            load,
            trace,
            policy,
            page_size=int(page_size or 1),
            known_lengths=knew_lengths(measured),
            warm_up_burst=warm_up_burst(load),
        )["tokenflow"]
        cells = [_cell(found, measured["tokenflow"], keys) for keys in FIGURES.values()]
        cells = [label(workload, measured), name, *cells, measured["commit"]]
        lines.append("| " + " | ".join(cells) + " |")
    text = "\n".join(lines) + "\n"
    print(text)
    PAGE.write_text(replace_table(PAGE.read_text(), "fidelity", text))


def _measured() -> list[tuple[str, str, dict[str, Any]]]:
    """Valid runs of the pair, with each size of pages."""
    found = []
    for path in sorted(RESULTS.glob("*.json")):
        runs = json.loads(path.read_text())["runs"]
        found += [
            (path.stem, name, runs[name])
            for name in (*PAIR, *PAGED, *(name + KNOWN for name in (*PAIR, *PAGED)))
            if name in runs and runs[name]["run"]["valid"]
        ]
    return found


def _cell(found: Any, measured: Any, keys: tuple[str, ...]) -> str:
    """The simulated figure, and its difference from the measured one."""
    for key in keys:
        found, measured = found[key], measured[key]
    scale = 1000.0 if keys[0] == "tpot_s" else 1.0
    shown = f"{found * scale:,.2f}"
    if keys[0] == "stall_per_request_s" and measured < SMALL_STALL:
        return shown
    return f"{shown} ({found / measured - 1:+.1%})"


if __name__ == "__main__":
    main()
