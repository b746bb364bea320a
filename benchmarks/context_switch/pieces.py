"""Pieces of the copies of real SGLang, and what each of HiCache's backends would make of them.

    python benchmarks/context_switch/pieces.py

Writes two tables of README.md beside this file, from the results of `live.py pieces` (pages of one
token are those of its ablation where that suite was not run with them) and of `live.py groups`. The
times are arithmetic (`tokenflow_sgl.lab.profiles.pieces`) with published costs, for a copy of
average size; no GPU measured them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenflow_sgl.choices import IoBackend, MemLayout
from tokenflow_sgl.lab.profiles import DeviceProfile, Pieces
from tokenflow_sgl.lab.profiles.pieces import ESTIMATED, GATHERED, load_pieces, store_pieces

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
    """The copies of the same burst with SGLang's own allocators and with ours."""
    lines = [
        "| pages | allocator | preemptions | way | transfers | tokens each | runs on the host "
        "| on the device | on both | tokens per run | KB per piece | runs per preemption "
        "| kernel | direct | direct, `layer_first` | commit |",
        "| ---: | --- | ---: | --- |" + " ---: |" * 11 + " --- |",
    ]
    for path in sorted(RESULTS.glob("groups-*.json")):
        kept = json.loads(path.read_text())
        profile = device_profile(kept["device"], float(path.stem.partition("-")[2]))
        for name, run in sorted(kept["runs"].items(), key=lambda item: _paired(item[0])):
            page, allocator = _paired(name)
            metrics = run["metrics"]
            preempted = sum(value for key, value in metrics.items() if key.startswith(PREEMPTIONS))
            for way in WAYS:
                copies = run["emulated_device"][way]
                number, tokens, runs = copies["transfers"], copies["tokens"], copies["runs"]
                piece = tokens / runs * profile.kv_bytes_per_token / (2 * profile.layers)
                each = tokens / number, page, runs / number, profile
                cells = [
                    f"{page}",
                    allocator or "SGLang",
                    f"{preempted:,.0f}",
                    WAYS[way],
                    f"{number:,}",
                    f"{tokens / number:,.0f}",
                    f"{copies['host_runs'] / number:,.1f}",
                    f"{copies['device_runs'] / number:,.1f}",
                    f"{runs / number:,.1f}",
                    f"{tokens / runs:,.1f}",
                    f"{piece / 1e3:.1f}",
                    f"{runs / preempted:,.0f}",
                    *(
                        _time(way, each[0], _issued(way, *layout, *each), profile)
                        for layout in LAYOUTS
                    ),
                    run["commit"],
                ]
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _paired(name: str) -> tuple[int, str]:
    """(Tokens of a page, what is not SGLang's), by the name of a contender."""
    page, _, ours = name.removeprefix("pages of ").partition(", ")
    return int(page), ours


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
        *(_time(way, tokens, each, profile) for each in (GATHERED, *issued)),
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


def _time(way: str, tokens: float, issued: Pieces, profile: DeviceProfile) -> str:
    link = profile.host_to_device if way == "loaded" else profile.device_to_host
    seconds = ESTIMATED.seconds(link, tokens * profile.kv_bytes_per_token, issued)
    return f"{1e3 * seconds:.2f} ms"


if __name__ == "__main__":
    main()
