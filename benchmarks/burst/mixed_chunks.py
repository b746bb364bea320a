"""SGLang's mixed chunks of 2,048 tokens beside tokenflow: what they change while it leaves all be.

    python benchmarks/burst/mixed_chunks.py --azure AZURE.csv --mooncake MOONCAKE.jsonl
    python benchmarks/burst/mixed_chunks.py --tables

Under stress tokenflow lets streams decode in the steps of prefills. Before that SGLang's own policy
decides, which computes prompts in steps of their own. With `--enable-mixed-chunk` it does not, and
with `--chunked-prefill-size 2048` such steps are short. The workloads and figures are those of
`own_memory.py`, whose results tokenflow alone has. Takes twenty minutes of CPU. Each run is written
to benchmarks/results/mixed_chunks.json, and a later call goes on from there while the package is
the same; at the end the table is written into docs/benchmarks.md.
"""

from __future__ import annotations

import json
from typing import Any

from compared import FIGURES, TOKENFLOW, Figure, between, table
from own_memory import MODEL, arguments, run, workloads
from own_memory_tables import DATA as ALONE
from own_memory_tables import PAGE
from served import SETTINGS, opened, save

DATA = ALONE.with_name("mixed_chunks.json")
_, MIXED = SETTINGS["mixed chunks of 2,048"]
SHOWN = [figure for figure in FIGURES if figure.name != "first text and stalls, mean"]


def main() -> None:
    given = arguments(__doc__)
    if not given.tables:
        settings = {TOKENFLOW: {"policy": TOKENFLOW, **MIXED}}
        data = opened(DATA) | {"model": MODEL, "settings": settings}
        found = data.setdefault("workloads", {})
        for name, load in workloads(given.azure, given.mooncake).items():
            draws = found.setdefault(name, {})
            for number in map(str, range(len(load.draws))):
                if number not in draws:
                    draws[number] = run(load, int(number), TOKENFLOW, **MIXED)
                    save(data, DATA)
                    print(f"{name} {number}", flush=True)
    PAGE.write_text(between(PAGE.read_text(), "mixed", rows()))


def rows() -> str:
    """The table: each draw alone and with mixed chunks."""
    alone = json.loads(ALONE.read_text())["workloads"]
    mixed = json.loads(DATA.read_text())["workloads"]
    heads = ["workload", "draw", *(figure.name for figure in SHOWN)]
    lines = []
    for name, draws in mixed.items():
        for number, then in draws.items():
            before = alone[name]["draws"][number][TOKENFLOW]
            lines.append([f"`{name}`", number, *(cell(figure, before, then) for figure in SHOWN)])
    return table(heads, lines, 1)


def cell(figure: Figure, before: dict[str, Any], then: dict[str, Any]) -> str:
    """A value alone, and with mixed chunks: bold where that is worse by over 2 %."""
    pair = {"alone": before, TOKENFLOW: then}
    shown = figure.show(figure.of(then))
    if figure.worse(pair, "alone"):
        shown = f"**{shown}**"
    return f"{figure.show(figure.of(before))} → {shown}"


if __name__ == "__main__":
    main()
