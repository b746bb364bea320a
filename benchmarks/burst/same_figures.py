"""Two versions of the package simulate the same workloads: are their runs the same, bit by bit?

    python benchmarks/burst/same_figures.py /path/to/old/.venv/bin/tokenflow .venv/bin/tokenflow
    python benchmarks/burst/same_figures.py OLD NEW --azure AzureLLMInferenceTrace_conv.csv

For changes that must not change a decision, and to see what one that may does. Each workload runs
under fcfs and tokenflow; the tables of tokens and of requests are compared, and the figures of both
are printed where they differ. Exit code 1 if any differ.

Versions before `simulate --known-lengths` always let the server know when an answer ends. To
compare with one of them, give --known-lengths: it is passed to the versions that have it.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
from suite import LOADS

POLICIES = ("fcfs", "tokenflow")
WORKLOADS = [name for name in LOADS if name.startswith(("4090", "h200"))]


def simulate(command: str, arguments: list[str], folder: Path) -> None:
    """Run `tokenflow simulate` of one version."""
    done = subprocess.run(
        [*shlex.split(command), "simulate", *arguments, "--output", str(folder)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{command} simulate {shlex.join(arguments)} failed:\n{done.stdout}{done.stderr}")


def known_lengths(command: str) -> list[str]:
    """`--known-lengths`, where this version has it."""
    told = subprocess.run(
        [*shlex.split(command), "simulate", "--help"], capture_output=True, text=True, check=True
    )
    return ["--known-lengths"] if "--known-lengths" in told.stdout else []


def figures(folder: Path) -> dict[str, float]:
    """Of a run: TTFT in seconds, and when the last token came."""
    tokens = parquet.read_table(folder / "tokens.parquet").to_pandas()
    requests = parquet.read_table(folder / "requests.parquet").to_pandas()
    first = tokens.groupby("request")["time_s"].min()
    ttft = first - requests.set_index("index")["sent_s"]
    return {
        "mean TTFT": float(ttft.mean()),
        "P99 TTFT": float(np.percentile(ttft, 99)),
        "last token": float(tokens["time_s"].max()),
    }


def same(old: Path, new: Path) -> bool:
    """Whether both runs have equal tables, in the columns that both versions know."""
    for name in ("tokens.parquet", "requests.parquet"):
        one, two = parquet.read_table(old / name), parquet.read_table(new / name)
        shared = [column for column in one.column_names if column in two.column_names]
        if not one.select(shared).equals(two.select(shared)):
            return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", help="command of one version")
    parser.add_argument("new", help="command of the other")
    parser.add_argument("--azure", help="file of the Azure conversation trace, for twice its speed")
    parser.add_argument("--only", nargs="*", help="names of workloads")
    parser.add_argument(
        "--known-lengths", action="store_true", help="let both servers know when an answer ends"
    )
    args = parser.parse_args()
    versions = [
        (command, known_lengths(command) if args.known_lengths else [])
        for command in (args.old, args.new)
    ]
    loads = {
        name: [
            *("--trace", LOADS[name].trace, "--device", LOADS[name].device),
            *("--kv-tokens", str(LOADS[name].kv_tokens)),
        ]
        for name in args.only or WORKLOADS
    }
    if args.azure:
        loads["azure-2x"] = ["--trace", f"azure:{args.azure}", "--device", "h200"]
        loads["azure-2x"] += ["--kv-tokens", "200000", *LOADS["azure-2x"].replay]
    differ = False
    with tempfile.TemporaryDirectory() as scratch:
        for name, arguments in loads.items():
            folders = [Path(scratch) / f"{name}-{version}" for version in ("old", "new")]
            for (command, known), folder in zip(versions, folders, strict=True):
                simulate(command, [*arguments, *known, "--policy", ",".join(POLICIES)], folder)
            for policy in POLICIES:
                old, new = (folder / policy for folder in folders)
                if same(old, new):
                    print(f"{name}, {policy}: the same", flush=True)
                    continue
                differ = True
                before, after = figures(old), figures(new)
                told = (f"{key} {before[key]:.4f} s, {after[key]:.4f} s" for key in before)
                print(f"{name}, {policy}: differ (old, new): {'; '.join(told)}", flush=True)
    sys.exit(differ)


if __name__ == "__main__":
    main()
