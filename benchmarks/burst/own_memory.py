"""What one flag gives: the device's own memory, against the best of SGLang's own settings.

    python benchmarks/burst/own_memory.py --azure AZURE.csv --mooncake MOONCAKE.jsonl
    python benchmarks/burst/own_memory.py --tables

Simulated, with as many KV tokens as SGLang allocates on the device, and unknown lengths. The host
holds what the server chooses without an option: twice that under SGLang's HiCache, and up to four
times where that is little memory under tokenflow. All workloads but Azure's are drawn four times.
The first draw is served under SGLang's defaults, under its other settings (`SETTINGS`), and under
tokenflow; the others under those of them that were best in some figure. Takes half an hour of CPU.
Each run is written to benchmarks/results/own_memory.json as soon as it is there, and a later call
goes on from there while the package is the same. At the end it prints the table, and writes it into
README.md and docs/benchmarks.md; --tables does that alone, from the file.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from itertools import product
from typing import Any

from compared import DEFAULTS, EFFECTIVE, FIGURES, TOKENFLOW
from own_memory_tables import DATA, short_table, write_tables
from rich.console import Console
from served import SETTINGS, machine, opened, read, save

from tokenflow_sgl.cli.chosen_trace import TraceChoice
from tokenflow_sgl.lab.sim import simulate
from tokenflow_sgl.lab.sim.study.own_settings import with_one_flag

MODEL = "llama3-8b"
RATE = "20"
"""Tokens per second of the readers of real traces, as of the named workloads."""
WITHOUT_QUEUE = (
    DEFAULTS,
    "hrrn",
    "mixed chunks of 2,048",
    "prefill interval 22",
    "shortest prefill, mixed chunks",
    TOKENFLOW,
)
"""What can matter where all streams fit, and nothing is reserved in vain."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What is served, and on what.

    Attributes:
        device: Simulated device.
        draws: By draw, the first one for the tables: the trace, and the part of it (`--window`).
        speed_up: How much faster it is sent than it was recorded.
        rate: Tokens per second of its readers; None: as the trace says.
        settings: What it is served under.
    """

    device: str
    draws: tuple[tuple[str, str | None], ...]
    speed_up: float | None = None
    rate: str | None = None
    settings: tuple[str, ...] = tuple(SETTINGS)


def workloads(azure: str | None, mooncake: str | None) -> dict[str, Workload]:
    """The paper's eight, and the real traces whose files are given.

    Draws of a named workload have other seeds, of Mooncake other ten minutes. Of Azure there is the
    one hour.
    """
    found = {}
    for letter, (device, short) in product("abcd", (("h200", "h200"), ("rtx4090", "4090"))):
        name = f"{short}-{letter}"
        draws = (name, *(f"{name}?seed={seed}" for seed in (1, 2, 3)))
        found[name] = Workload(device, tuple((draw, None) for draw in draws))
    if mooncake:
        parts = (f"{start}:600" for start in (0, 600, 1200, 1800))
        spec = f"mooncake:{mooncake}"
        found["mooncake"] = Workload("h200", tuple((spec, part) for part in parts), rate=RATE)
    if azure:
        draws = ((f"azure:{azure}", None),)
        found["azure-4x"] = Workload("h200", draws, 4.0, RATE)
        found["azure-1x"] = Workload("h200", draws, None, RATE, settings=WITHOUT_QUEUE)
    return found


def main() -> None:
    given = arguments(__doc__)
    if not given.tables:
        measure(workloads(given.azure, given.mooncake))
    data = json.loads(DATA.read_text())
    write_tables(data)
    print(short_table(data))


def arguments(description: str | None) -> argparse.Namespace:
    """The command line: the traces, and whether only tables are to be written."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--azure", metavar="FILE", help="conversation trace")
    parser.add_argument("--mooncake", metavar="FILE", help="conversation trace")
    parser.add_argument("--tables", action="store_true", help="only write the tables again")
    return parser.parse_args()


def measure(chosen: dict[str, Workload]) -> None:
    """Run what the file does not have yet of this code, the first draws before the others."""
    data = opened(DATA) | {"model": MODEL}
    found = data.setdefault("workloads", {})
    first = [(name, 0) for name in chosen]
    others = [(name, n) for name, load in chosen.items() for n in range(1, len(load.draws))]
    for name, number in [*first, *others]:
        load = chosen[name]
        kept = found.setdefault(name, _machine(load))["draws"]
        runs = kept.setdefault(str(number), {})
        for setting in _contested(kept["0"]) if number else load.settings:
            if setting not in runs:
                started = time.monotonic()
                runs[setting] = run(load, number, setting)
                save(data, DATA)
                taken = time.monotonic() - started
                print(f"{name} {number} {setting}: {taken:.0f} s", flush=True)


def _contested(first: dict[str, Any]) -> list[str]:
    """The settings that the tables compare: what was best in some figure of the first draw."""
    best = {figure.best(first) for figure in (*FIGURES, EFFECTIVE)}
    return [name for name in SETTINGS if name in {*best, DEFAULTS, TOKENFLOW}]


def _machine(load: Workload) -> dict[str, Any]:
    profile, options = machine(load.device, MODEL)
    options = with_one_flag(profile, options)
    return {
        "device": load.device,
        "kv_tokens": options.max_total_tokens,
        "host_tokens": options.host_tokens,
        "host_gb": options.host_tokens * profile.kv_bytes_per_token / 1e9,
        "draws": {},
    }


def run(load: Workload, draw: int, setting: str, **more: Any) -> dict[str, float]:
    """One run's figures; `more`: of SGLang's options."""
    policy, settings = SETTINGS[setting]
    spec, window = load.draws[draw]
    trace = TraceChoice(window=window, speed_up=load.speed_up, rate=load.rate).open(
        spec, Console(stderr=True)
    )
    profile, options = machine(load.device, MODEL, **settings, **more)
    if setting == TOKENFLOW:
        options = with_one_flag(profile, options)
    return read(simulate(trace, profile, options, policy=policy))


if __name__ == "__main__":
    main()
