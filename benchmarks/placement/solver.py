"""Time and quality of the placement solver, beside scipy's MILP and the baselines of OrbitFlow.

    python benchmarks/placement/solver.py times
    python benchmarks/placement/solver.py excess
    python benchmarks/placement/solver.py ahead

Times are CPU times of the process, after numba has compiled. Writes benchmarks/results/placement/
and the tables of README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tokenflow_sgl.lab.profiles import load_profile
from tokenflow_sgl.placement import (
    Batch,
    Layouts,
    Machine,
    PlacementTerms,
    SearchEffort,
    blocks_after,
    every_kth,
    fits,
    half_phases,
    kernels_of,
    plan,
    solve,
    step_seconds,
)
from tokenflow_sgl.placement.baselines import (
    deepspeed_seconds,
    dynamic_heuristic,
    flexgen,
    flexgen_plus,
    slo_aware,
)
from tokenflow_sgl.placement.milp import solve_milp

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "burst"))

from table import replace_table

RESULTS = Path(__file__).resolve().parents[1] / "results" / "placement"
PAGE = Path(__file__).with_name("README.md")
LAYERS = 32
BLOCK = 16
LINK = 12e9
"""Bytes per second: PCIe 3.0 x16 with pinned memory."""
BLOCK_BYTES = BLOCK * 4096
"""KV of 16 tokens in one layer of Llama-3-8B: 8 heads of 128 values, keys and values, 2 bytes."""
CHOICES: dict[str, Callable[[int], Layouts]] = {"every k-th": every_kth, "half phases": half_phases}
THOROUGH = SearchEffort(near=1e-5, search=3000, pairs=True, branch=3_000_000)
"""For the optimum of 8 streams."""

Case = tuple[np.ndarray[Any, np.dtype[np.float64]], Machine]


def random_cases(streams: int, count: int, seed: int) -> Iterator[Case]:
    """Log-normal lengths, and memory for 20 to 90 % of their KV."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        sizes = np.clip(np.round(rng.lognormal(np.log(200), 1.0, streams)), 10, 2000)
        compute = np.full(LAYERS, rng.uniform(0.8e-3, 1.5e-3))
        memory = rng.uniform(0.2, 0.9) * float(sizes.sum()) * LAYERS
        yield sizes, Machine(compute, LINK / BLOCK_BYTES, memory)


def a5000_cases(streams: int, count: int, seed: int) -> Iterator[Case]:
    """Llama-3-8B on an RTX A5000: 16K tokens of KV memory, 16K to 32K tokens in the batch."""
    profile = load_profile("a5000", "llama3-8b")
    rng = np.random.default_rng(seed)
    for _ in range(count):
        parts = rng.lognormal(0.0, 0.8, streams)
        tokens = np.maximum(parts / parts.sum() * rng.uniform(16_500, 32_000), BLOCK)
        seconds = profile.decode_seconds(streams, int(tokens.sum()))
        memory = 16_384 / BLOCK * LAYERS
        machine = Machine(np.full(LAYERS, seconds / LAYERS), LINK / BLOCK_BYTES, memory)
        yield np.ceil(tokens / BLOCK), machine


def times(args: argparse.Namespace) -> dict[str, Any]:
    """CPU milliseconds and gaps, by choices and number of streams."""
    kernels = kernels_of(compiled=True)
    found: dict[str, Any] = {}
    for name, choices in CHOICES.items():
        layouts = choices(LAYERS)
        for streams in (1, 2, 4, 8, 16, 64, 128):
            cases = list(random_cases(streams, args.cases, seed=100 + streams))
            solve(*_of(cases[0], layouts), kernels=kernels)  # compiled before it is measured
            row: dict[str, Any] = {"ms": [], "gap_to_bound": [], "gap_to_optimum": []}
            placed = []
            for case in cases:
                begin = time.process_time()
                placement = solve(*_of(case, layouts), kernels=kernels)
                row["ms"].append(1e3 * (time.process_time() - begin))
                assert placement is not None
                placed.append(placement)
                row["gap_to_bound"].append(placement.gap)
            row["exact"] = sum(placement.exact for placement in placed)
            if streams <= 8:
                for case, placement in zip(cases, placed, strict=True):
                    best = solve(*_of(case, layouts), effort=THOROUGH, kernels=kernels)
                    assert best is not None
                    row["gap_to_optimum"].append(placement.seconds / best.seconds - 1.0)
            if name == "every k-th" and streams in (4, 8, 64, 128):
                row |= _milp_times(cases[: args.milp], layouts, placed)
            found[f"{name}, {streams}"] = row
            print(name, streams, _summary(row), flush=True)
            _write("times", found)
    return found


def _milp_times(cases: list[Case], layouts: Layouts, placed: list[Any]) -> dict[str, Any]:
    """CPU milliseconds of HiGHS at a gap of 1 %, and its steps over ours."""
    ms, ratio = [], []
    for case, ours in zip(cases, placed, strict=False):
        begin = time.process_time()
        theirs = solve_milp(*_of(case, layouts), gap=0.01)
        ms.append(1e3 * (time.process_time() - begin))
        assert theirs is not None
        ratio.append(theirs.seconds / ours.seconds)
    return {"milp_ms": ms, "milp_over_ours": ratio}


def excess(args: argparse.Namespace) -> dict[str, Any]:
    """Step time of each baseline over ours, minus 1, by kind of batch and number of streams."""
    kernels = kernels_of(compiled=True)
    found: dict[str, Any] = {}
    for kind, made in (("random", random_cases), ("A5000", a5000_cases)):
        for streams in (2, 4, 8, 16, 32):
            layouts = every_kth(LAYERS)
            cases = list(made(streams, args.cases, seed=5 + streams))
            static = flexgen(cases, layouts, kernels)
            row: dict[str, Any] = {"ours_over_compute": [], "excess": {}, "half_phases": []}
            for sizes, machine in cases:
                ours = solve(sizes, layouts, machine, kernels=kernels)
                shifted = solve(sizes, half_phases(LAYERS), machine, kernels=kernels)
                assert ours is not None and shifted is not None
                row["ours_over_compute"].append(ours.seconds / machine.computing)
                row["half_phases"].append(shifted.seconds / ours.seconds - 1.0)
                slo = 1.5 * machine.computing
                for name, layout in (
                    ("FlexGen", None if static is None else np.full(sizes.size, static)),
                    ("FlexGen+", flexgen_plus(sizes, layouts, machine, kernels)),
                    ("SLO-aware", slo_aware(slo)(sizes, layouts, machine, kernels)),
                    ("Dynamic Heuristic", dynamic_heuristic(sizes, layouts, machine, kernels)),
                ):
                    seconds = (
                        np.inf
                        if layout is None or not fits(sizes, layout, layouts, machine)
                        else step_seconds(sizes, layout, layouts, machine, kernels)
                    )
                    row["excess"].setdefault(name, []).append(seconds / ours.seconds - 1.0)
                deepspeed = deepspeed_seconds(sizes, machine) / ours.seconds - 1.0
                row["excess"].setdefault("DeepSpeed", []).append(deepspeed)
            found[f"{kind}, {streams}"] = row
            print(kind, streams, {k: f"{np.median(v):.1%}" for k, v in row["excess"].items()})
            _write("excess", found)
    return found


def ahead(args: argparse.Namespace) -> dict[str, Any]:
    """How long plans last that are made for the blocks some steps ahead, and what that costs."""
    kernels = kernels_of(compiled=True)
    found: dict[str, Any] = {}
    for streams in (4, 8):
        for steps in (0, 16):
            rng = np.random.default_rng(40 + streams)
            row: dict[str, list[float]] = {"lasts": [], "price": [], "moved": [], "scratch": []}
            for sizes, machine in random_cases(streams, args.cases // 2, seed=40 + streams):
                tokens = (sizes * BLOCK).astype(np.int64) - rng.integers(0, BLOCK, streams)
                terms = PlacementTerms(ahead=steps, worse=0.05)
                made = plan(Batch.of(tokens), machine, terms, kernels=kernels)
                if made.paused:
                    continue
                now = blocks_after(tokens, 0, BLOCK)
                best = solve(now, made.layouts, machine, kernels=kernels)
                assert best is not None
                seconds = step_seconds(now, made.layout, made.layouts, machine, kernels)
                row["lasts"].append(made.lasts)
                row["price"].append(seconds / best.seconds - 1.0)
                later = tokens + made.lasts + 1
                for name, installed in (("moved", made.installed()), ("scratch", None)):
                    again = plan(
                        Batch.of(later), machine, terms, installed=installed, kernels=kernels
                    )
                    if not again.paused:
                        moved = _migrated(again.sizes, made.layouts, made.layout, again.layout)
                        step = machine.bandwidth * again.seconds
                        row[name].append(moved / step)
            found[f"{streams}, {steps}"] = row
            print(streams, steps, {key: f"{np.median(of):.3g}" for key, of in row.items()})
            _write("ahead", found)
    return found


def _migrated(sizes: Any, layouts: Layouts, before: Any, after: Any) -> float:
    """Blocks that come to the device between two placements."""
    offloaded = layouts.offloaded()
    loaded = (offloaded[before] & ~offloaded[after]).sum(axis=1)
    return float((sizes * loaded).sum())


def _of(case: Case, layouts: Layouts) -> tuple[Any, Layouts, Machine]:
    return case[0], layouts, case[1]


def _summary(row: dict[str, Any]) -> str:
    parts = [f"{np.median(row['ms']):.2f} / {np.percentile(row['ms'], 99):.2f} ms"]
    if "milp_ms" in row:
        parts.append(f"MILP {np.median(row['milp_ms']):.0f} ms")
    return ", ".join(parts)


def _write(name: str, found: dict[str, Any]) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    rounded = json.loads(json.dumps(found), parse_float=lambda text: float(f"{float(text):.5g}"))
    (RESULTS / f"{name}.json").write_text(json.dumps(rounded) + "\n")


def write_page() -> None:
    """The tables of README.md, from all results."""
    page = PAGE.read_text()
    for name, table in (
        ("times", _times_table),
        ("excess", _excess_table),
        ("ahead", _ahead_table),
    ):
        path = RESULTS / f"{name}.json"
        if path.exists():
            page = replace_table(page, name, table(json.loads(path.read_text())))
    PAGE.write_text(page)


def _times_table(found: dict[str, Any]) -> str:
    lines = [
        "| choices | streams | CPU ms, median | P99 | above the optimum, mean | P99 "
        "| above the LP bound, mean | P99 | MILP, CPU ms, median | times ours "
        "| its steps over ours, mean |",
        "| --- |" + " ---: |" * 10,
    ]
    for key, row in found.items():
        choices, streams = key.split(", ")
        cells = [f"{np.median(row['ms']):.2f}", f"{np.percentile(row['ms'], 99):.2f}"]
        for name in ("gap_to_optimum", "gap_to_bound"):
            gaps = row[name]
            cells += (
                [f"{np.mean(gaps):.2%}", f"{np.percentile(gaps, 99):.2%}"] if gaps else ["", ""]
            )
        if "milp_ms" in row:
            count = len(row["milp_ms"])
            ratio = np.median(np.array(row["milp_ms"]) / np.array(row["ms"][:count]))
            cells += [f"{np.median(row['milp_ms']):.0f}", f"{ratio:.0f}"]
            cells.append(f"{np.mean(row['milp_over_ours']):.4f}")
        else:
            cells += ["", "", ""]
        lines.append(f"| {choices} | {streams} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _excess_table(found: dict[str, Any]) -> str:
    names = ("DeepSpeed", "FlexGen", "FlexGen+", "SLO-aware", "Dynamic Heuristic")
    lines = [
        "| batch | streams | ours over compute | " + " | ".join(names) + " | half phases |",
        "| --- |" + " ---: |" * (3 + len(names)),
    ]
    for key, row in found.items():
        kind, streams = key.split(", ")
        cells = [f"{np.median(row['ours_over_compute']):.2f}"]
        for name in names:
            of = np.array(row["excess"][name])
            missing = int(np.isinf(of).sum())
            cell = "none fits" if missing == of.size else f"{np.median(of):.1%}"
            cells.append(f"{cell} ({missing} fit not)" if 0 < missing < of.size else cell)
        cells.append(f"{np.median(row['half_phases']):+.1%}")
        lines.append(f"| {kind} | {streams} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _ahead_table(found: dict[str, Any]) -> str:
    lines = [
        "| streams | steps ahead | lasts, median | longer step now, mean "
        "| migrated, warm | from scratch |",
        "| ---: |" + " ---: |" * 5,
    ]
    for key, row in found.items():
        streams, steps = key.split(", ")
        lines.append(
            f"| {streams} | {steps} | {np.median(row['lasts']):.0f} "
            f"| {np.mean(row['price']):.2%} | {np.mean(row['moved']):.3f} "
            f"| {np.mean(row['scratch']):.3f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["times", "excess", "ahead", "page"])
    parser.add_argument("--cases", type=int, default=400, help="batches of each kind")
    parser.add_argument("--milp", type=int, default=10, help="of these, those given to scipy")
    args = parser.parse_args()
    if args.part != "page":
        {"times": times, "excess": excess, "ahead": ahead}[args.part](args)
    write_page()


if __name__ == "__main__":
    main()
