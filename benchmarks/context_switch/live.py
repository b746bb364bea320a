"""What context switches cost in real SGLang on an emulated RTX 4090, at several links.

    python benchmarks/context_switch/live.py ablation --link 25 --link 6 --link 2
    python benchmarks/context_switch/live.py ablation --link 2 --contender "not loaded ahead"
    python benchmarks/context_switch/live.py Markov-0.02 --link 6
    python benchmarks/context_switch/live.py fixed --link 25
    python benchmarks/context_switch/live.py pieces --link 25
    python benchmarks/context_switch/live.py overlap --link 2 --virtual-time
    python benchmarks/context_switch/live.py groups --link 25 --virtual-time

Runs are like those of `benchmarks/burst/run.py`: a server per contender, one after the other, the
very same requests; nothing else should run meanwhile. The servers see the client's limit of each
answer and not its length, unless --known-lengths. The figures go to
benchmarks/results/context_switch/, and from there into the tables of README.md beside this file.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "burst"))

from pieces import groups_table, pieces_table
from run import ROOT, keep, measure
from suite import CONTENDERS, LOADS, WITH_PRIORITIES, tuning
from switch_times import FILE, summary
from table import lengths, replace_table

from tokenflow_sgl.lab.observe import scrape

PAGE = Path(__file__).with_name("README.md")
RESULTS = ROOT / "benchmarks" / "results" / "context_switch"
DILATION = 0.4
TOKENFLOW = CONTENDERS["tokenflow"]
NO_OFFLOAD = ("--scheduler", "tokenflow", "--tokenflow-hicache", "off")
WRITE_BACK = ("--hicache-write-policy", "write_back")

Contenders = Mapping[str, tuple[str, ...]]

ABLATION: Contenders = {
    "all of it": TOKENFLOW,
    "not written ahead": (*TOKENFLOW, *tuning("not-written-ahead")),
    "not loaded ahead": (*TOKENFLOW, *tuning("not-loaded-ahead")),
    "neither": (*TOKENFLOW, *tuning("neither-ahead")),
    "write-back": (*TOKENFLOW, *WRITE_BACK),
    "no offload": NO_OFFLOAD,
}
"""SGLang's options; HiCache copies both ways at once, which cannot be switched off."""


GROUPS = (*TOKENFLOW, *tuning("block-groups"))
PIECES: Contenders = {
    f"pages of {size}": (*TOKENFLOW, "--page-size", str(size)) for size in (1, 16, 64)
}
PAIRED: Contenders = {
    f"pages of {size}{name}": (*options, "--page-size", str(size))
    for size in (1, 16)
    for name, options in (
        ("", TOKENFLOW),
        (", block groups", GROUPS),
    )
}


def _switching(pattern: str) -> Contenders:
    ours, swaps = (
        ("--tokenflow-policy", f"priorities:{name}") for name in (pattern, f"{pattern}Swaps")
    )
    return {
        "recompute": (*NO_OFFLOAD, *swaps),
        "swap, write-back": (*TOKENFLOW, *swaps, *WRITE_BACK),
        "swap, write-through": (*TOKENFLOW, *swaps),
        "ours": (*TOKENFLOW, *ours),
    }


OVERLAP: Contenders = {
    "as a whole": (*TOKENFLOW, "--tokenflow-policy", "switch_times:Whole"),
    "in chunks": (*TOKENFLOW, "--tokenflow-policy", "switch_times:Chunks"),
    "not written ahead, as a whole": (*TOKENFLOW, "--tokenflow-policy", "switch_times:Late"),
    "not written ahead, in chunks": (*TOKENFLOW, "--tokenflow-policy", "switch_times:LateChunks"),
}
"""Whether a prefetch begins before memory for all of it is free."""

ROWS = ("--max-running-requests", "16")
"""So few that rows run short before memory does: only then does SGLang preempt by priority."""

FIXED: Contenders = {
    WITH_PRIORITIES: (*CONTENDERS[WITH_PRIORITIES], *ROWS),
    "swap, write-through": (*TOKENFLOW, *ROWS, "--tokenflow-policy", "priorities:FixedSwaps"),
    "ours": (*TOKENFLOW, *ROWS, "--tokenflow-policy", "priorities:Fixed"),
}
"""Priorities that stay. Stock recomputes whom it preempts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Suite:
    """Contenders on one workload, or on a part of it."""

    contenders: Contenders
    workload: str = "4090-b"
    scale: float | None = None


SUITES: Mapping[str, Suite] = {
    "ablation": Suite(ABLATION),
    "pieces": Suite(PIECES),
    # Small, so that all are done within an hour or two on a busy machine.
    "groups": Suite(PAIRED, scale=0.35),
    "resumes": Suite(OVERLAP, scale=0.35),
    "overlap": Suite(OVERLAP),
    "Markov-0.02": Suite(_switching("Markov2")),
    "Markov-0.04": Suite(_switching("Markov4")),
    "Random-0.02": Suite(_switching("Random2")),
    "Random-0.04": Suite(_switching("Random4")),
    # A burst would be sorted once; with newcomers all the time there is somebody to preempt.
    "fixed": Suite(FIXED, "4090-d", 0.15),
}
SWITCHING = ("Markov-0.02", "Markov-0.04", "Random-0.02", "Random-0.04")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--link", type=float, action="append", required=True, help="GB/s each way")
    names = sorted({name for suite in SUITES.values() for name in suite.contenders})
    parser.add_argument("--contender", action="append", choices=names, help="default: all")
    parser.add_argument("--scale", type=float, help="part of the burst, for long runs")
    parser.add_argument("--dilation", type=float, default=DILATION)
    parser.add_argument("--virtual-time", action="store_true", help="instead of a dilation")
    parser.add_argument("--output", type=Path, default=Path("context-switch-results"))
    parser.add_argument(
        "--known-lengths", action="store_true", help="send each answer's length as its limit"
    )
    args = parser.parse_args()
    suite = SUITES[args.suite]
    scale = args.scale or suite.scale
    trace = suite.workload + (f"?scale={scale:g}" if scale else "")
    for link in args.link:
        load = dataclasses.replace(LOADS[suite.workload], link=link)
        for name, options in suite.contenders.items():
            if args.contender and name not in args.contender:
                continue
            run = f"{args.suite}-{link:g}"
            folder = args.output / run / name.replace(", ", "-").replace(" ", "-")
            options = (*options, "--enable-metrics")
            times = folder.with_suffix(".switches").absolute()
            times.unlink(missing_ok=True)
            os.environ[FILE] = str(times)
            said = measure(
                load,
                trace,
                name,
                options,
                folder,
                None if args.virtual_time else args.dilation,
                after=ask,
                known_lengths=args.known_lengths,
            )
            if times.exists():
                said["resumes"] = summary(times)
                print(f"{name}: {said['resumes']}")
            keep(
                RESULTS / f"{run}.json", suite.workload, load, trace, name, options, folder, **said
            )
            PAGE.write_text(page(PAGE.read_text()))


def ask(url: str) -> dict[str, Any]:
    """What a server counted: tokenflow's metrics, and the emulated device's copies."""
    metrics: dict[str, float] = {}
    for samples in scrape(url).samples.values():
        for sample in samples:
            if (
                sample.name.startswith("tokenflow:")
                and "le" not in sample.labels
                and not math.isnan(sample.value)
            ):
                ours = (
                    sample.labels.get(each)
                    for each in ("cause", "direction", "source", "qos_class")
                )
                name = " ".join([sample.name, *filter(None, ours)])
                metrics[name] = metrics.get(name, 0.0) + sample.value
    with urllib.request.urlopen(url + "/server_info", timeout=30) as response:
        device = json.load(response)["internal_states"][0]["emulated_device"]
    return {"metrics": metrics, "emulated_device": device}


def page(text: str) -> str:
    """The page with the tables of all results."""
    for table, suites, first in (
        ("live ablation", ("ablation",), "all of it"),
        ("live switching", SWITCHING, "recompute"),
        ("live priorities", ("fixed",), WITH_PRIORITIES),
    ):
        lines = [
            "| link | what | KV | lengths | makespan | tokens/s | effective tokens/s | mean TTFT "
            "| P95 TTFT | P99 TTFT | P99.9 TBT | mean stall | commit |",
            "| --- | --- | --- | --- |" + " ---: |" * 8 + " --- |",
        ]
        for suite in suites:
            found = [
                (float(path.stem.rpartition("-")[2]), json.loads(path.read_text())["runs"])
                for path in RESULTS.glob(f"{suite}-*.json")
            ]
            for link, runs in sorted(found, key=lambda item: -item[0]):
                base = runs.get(first)
                lines += [
                    _row(link, suite, name, runs[name], base)
                    for name in SUITES[suite].contenders
                    if name in runs
                ]
        text = replace_table(text, table, "\n".join(lines) + "\n")
    text = replace_table(text, "groups", groups_table())
    return replace_table(text, "pieces", pieces_table())


def _row(link: float, suite: str, name: str, run: Mapping[str, Any], base: Any) -> str:
    """A run, with ratios to the first of its suite."""
    what = suite if run["run"]["valid"] else f"{suite} (INVALID)"
    cells = [f"{link:g} GB/s", what, name, lengths(run)]
    for value, first, unit in zip(_figures(run), _figures(base or run), UNITS, strict=True):
        shown = f"{value:,.1f}{unit}" if value < 100 else f"{value:,.0f}{unit}"
        cells.append(f"{shown} ({value / first:.2f}x)" if base and first else shown)
    return "| " + " | ".join([*cells, run["commit"]]) + " |"


UNITS = (" s", "", "", " s", " s", " s", " s", " s")


def _figures(run: Mapping[str, Any]) -> tuple[float, ...]:
    ours = run["tokenflow"]
    return (
        ours["makespan_s"],
        ours["token_throughput"],
        ours["effective_throughput"],
        *(ours["ttft_s"][each] for each in ("mean", "p95", "p99")),
        ours["tbt_s"]["p999"],
        ours["stall_per_request_s"]["mean"],
    )


if __name__ == "__main__":
    main()
