"""Pieces of the copies of real SGLang, and what each of HiCache's backends would make of them.

    python benchmarks/context_switch/pieces.py

Writes two tables of README.md beside this file, from the results of `live.py pieces` (pages of one
token are those of its ablation where that suite was not run with them) and of `live.py groups`. The
times are arithmetic (`tokenflow_sgl.profiles.pieces`) with published costs, for a copy of average
size; no GPU measured them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenflow_sgl.choices import IoBackend, MemLayout
from tokenflow_sgl.profiles import DeviceProfile, Pieces
from tokenflow_sgl.profiles.pieces import ESTIMATED, GATHERED, load_pieces, store_pieces

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "burst"))

from devices import device_profile
from run import ROOT
from table import replace_table

PAGE = Path(__file__).with_name("README.md")
RESULTS = ROOT / "benchmarks" / "results" / "context_switch"
PREEMPTIONS = "tokenflow:preemptions_total"
WAYS = {"stored": "to the host", "loaded": "back"}
LAYOUTS = (
    (IoBackend.kernel, MemLayout.page_first),
    (IoBackend.direct, MemLayout.page_first_direct),
    (IoBackend.direct, MemLayout.layer_first),
)


def main() -> None:
    text = replace_table(PAGE.read_text(), "groups", groups_table())
    PAGE.write_text(replace_table(text, "pieces", pieces_table()))


def groups_table() -> str:
    """The copies of the same burst with SGLang's own allocators and with block groups."""
    lines = [
        "| pages | allocator | preemptions | way | transfers | tokens each | runs each "
        "| tokens per run | KB per piece | runs per preemption | commit |",
        "| ---: | --- | ---: | --- |" + " ---: |" * 6 + " --- |",
    ]
    for path in sorted(RESULTS.glob("groups-*.json")):
        kept = json.loads(path.read_text())
        profile = device_profile(kept["device"], float(path.stem.partition("-")[2]))
        for name, run in sorted(kept["runs"].items(), key=lambda item: _paired(item[0])):
            page, groups = _paired(name)
            metrics = run["metrics"]
            preempted = sum(value for key, value in metrics.items() if key.startswith(PREEMPTIONS))
            for way in WAYS:
                copies = run["emulated_device"][way]
                number, tokens, runs = copies["transfers"], copies["tokens"], copies["runs"]
                piece = tokens / runs * profile.kv_bytes_per_token / (2 * profile.layers)
                lines.append(
                    f"| {page} | {'block groups' if groups else 'SGLang'} | {preempted:,.0f} "
                    f"| {WAYS[way]} | {number:,} | {tokens / number:,.0f} "
                    f"| {runs / number:,.1f} | {tokens / runs:,.1f} | {piece / 1e3:.1f} "
                    f"| {runs / preempted:,.0f} | {run['commit']} |"
                )
    return "\n".join(lines) + "\n"


def _paired(name: str) -> tuple[int, bool]:
    """(Tokens of a page, whether with block groups), by the name of a contender."""
    page, _, groups = name.removeprefix("pages of ").partition(", ")
    return int(page), bool(groups)


def pieces_table() -> str:
    """How many pieces the copies have, how large these are, and the time of a copy."""
    lines = [
        "| pages | way | transfers | tokens each | runs each | KB per piece | above 320 KB "
        "| bytes alone | kernel | direct | direct, `layer_first` | the same, one run | commit |",
        "| --- | --- |" + " ---: |" * 10 + " --- |",
    ]
    for path in sorted(RESULTS.glob("pieces-*.json")):
        kept = json.loads(path.read_text())
        link = path.stem.partition("-")[2]
        profile = device_profile(kept["device"], float(link))
        whole = RESULTS / f"ablation-{link}.json"
        ones = json.loads(whole.read_text())["runs"].get("all of it") if whole.exists() else None
        runs = {"pages of 1": ones, **kept["runs"]} if ones else kept["runs"]
        runs = dict(sorted(runs.items(), key=lambda item: int(item[0].rpartition(" ")[2])))
        for name, run in runs.items():
            page = int(name.removeprefix("pages of "))
            for way in WAYS:
                cells = _cells(run["emulated_device"][way], way, page, profile)
                cells = [str(page), WAYS[way], *cells, run["commit"]]
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cells(copies: Mapping[str, Any], way: str, page: int, profile: DeviceProfile) -> list[str]:
    number = copies["transfers"]
    tokens, runs = copies["tokens"] / number, copies["runs"] / number
    # In each of the device's buffers, K or V of a layer.
    per_piece = tokens / runs * profile.kv_bytes_per_token / (2 * profile.layers)
    large = copies.get("large_tokens")
    issued = [_issued(way, *layout, tokens, page, runs, profile) for layout in LAYOUTS]
    issued.append(_issued(way, *LAYOUTS[-1], tokens, page, 1, profile))
    return [
        f"{number:,}",
        f"{tokens:,.0f}",
        f"{runs:,.1f}",
        f"{per_piece / 1e3:.1f}",
        "not counted" if large is None else f"{large / copies['tokens']:.0%}",
        *(f"{1e3 * _seconds(way, tokens, each, profile):.2f} ms" for each in (GATHERED, *issued)),
    ]


def _issued(
    way: str,
    backend: IoBackend,
    layout: MemLayout,
    tokens: float,
    page: int,
    runs: float,
    profile: DeviceProfile,
) -> Pieces:
    pages, count, layers = round(tokens / page), round(runs), profile.layers
    if way == "loaded":
        return load_pieces(backend, layout, layers=layers, pages=pages, runs=count)
    size = float(page * profile.kv_bytes_per_token)
    return store_pieces(backend, layout, layers=layers, pages=pages, runs=count, page_bytes=size)


def _seconds(way: str, tokens: float, issued: Pieces, profile: DeviceProfile) -> float:
    link = profile.host_to_device if way == "loaded" else profile.device_to_host
    return ESTIMATED.seconds(link, tokens * profile.kv_bytes_per_token, issued)


if __name__ == "__main__":
    main()
