"""Two versions of the package simulate the same workloads: are their runs the same, bit by bit?

    python benchmarks/burst/same_figures.py /path/to/old/.venv/bin/tokenflow .venv/bin/tokenflow
    python benchmarks/burst/same_figures.py OLD NEW --azure AzureLLMInferenceTrace_conv.csv
    python benchmarks/burst/same_figures.py --record figures.json OLD
    python benchmarks/burst/same_figures.py --recorded figures.json NEW

For changes that must not change a decision, and to see what one that may does. Each workload runs
under fcfs and tokenflow; the tables of tokens and of requests are compared, and the figures of both
are printed where they differ. Exit code 1 if any differ.

A record has the digests of one version's tables, so that later versions need not run it again.

Versions before `simulate --known-lengths` always let the server know when an answer ends. To
compare with one of them, give --known-lengths: it is passed to the versions that have it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
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


def digests(folder: Path) -> dict[str, str]:
    """Of the tables of a run: SHA-256 of each column's values."""
    found = {}
    for name in ("tokens", "requests"):
        table = parquet.read_table(folder / f"{name}.parquet")
        for column in table.column_names:
            values = repr(table.column(column).to_pylist()).encode()
            found[f"{name}.{column}"] = hashlib.sha256(values).hexdigest()
    return found


def workloads(args: argparse.Namespace) -> dict[str, list[str]]:
    """Options of `simulate`, by workload."""
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
    if args.mooncake:
        loads["mooncake"] = ["--trace", f"mooncake:{args.mooncake}", "--device", "h200"]
        loads["mooncake"] += ["--kv-tokens", "916069", *LOADS["mooncake"].replay]
    return loads


def with_record(args: argparse.Namespace, file: Path, *, writes: bool) -> bool:
    """Write a record of a version, or compare one with it; returns whether anything differs."""
    command, differ = args.versions[0], False
    known = known_lengths(command) if args.known_lengths else []
    record = json.loads(file.read_text()) if file.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, arguments in workloads(args).items():
            folder = Path(scratch) / name
            simulate(command, [*arguments, *known, "--policy", ",".join(POLICIES)], folder)
            for policy in POLICIES:
                key, now = f"{name}, {policy}", digests(folder / policy)
                if writes:
                    record[key] = {"digests": now, "figures": figures(folder / policy)}
                    file.write_text(json.dumps(record, indent=1) + "\n")
                    print(f"{key}: recorded", flush=True)
                elif key not in record:
                    sys.exit(f"{file} has no {key}; allowed is a record of the same workloads")
                else:
                    before = record[key]["digests"]
                    wrong = [column for column in before if before[column] != now.get(column)]
                    differ = differ or bool(wrong)
                    said = f"differ in {', '.join(wrong)}" if wrong else "the same"
                    print(f"{key}: {said}", flush=True)
    return differ


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="+", help="commands of the versions, the old one first")
    parser.add_argument("--azure", help="file of the Azure conversation trace, for twice its speed")
    parser.add_argument("--mooncake", help="file of Mooncake's conversation trace")
    parser.add_argument("--record", type=Path, help="file to write the digests of one version to")
    parser.add_argument("--recorded", type=Path, help="file to compare one version with")
    parser.add_argument("--only", nargs="*", help="names of workloads")
    parser.add_argument(
        "--known-lengths", action="store_true", help="let both servers know when an answer ends"
    )
    args = parser.parse_args()
    alone = args.record or args.recorded
    if len(args.versions) != (1 if alone else 2):
        parser.error("allowed are two commands, or one with --record or --recorded")
    if alone:
        sys.exit(with_record(args, alone, writes=alone is args.record))
    versions = [
        (command, known_lengths(command) if args.known_lengths else []) for command in args.versions
    ]
    differ = False
    with tempfile.TemporaryDirectory() as scratch:
        for name, arguments in workloads(args).items():
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
