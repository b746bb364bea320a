"""Draws architecture.svg: which package imports which, from the code itself.

    .venv/bin/python docs/images/draw_architecture.py

A package stands one floor above the highest package that it imports, so all arrows lead down. An
import that a longer path implies is left out.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import grimp
import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

ROOT = "tokenflow_sgl"
SMALL = {"errors", "choices"}
"""Leaves that nearly every package imports: left out."""
HEIGHT = 0.62
COLUMNS = {
    **{"cli": 0.0, "engine": -2.0, "sim": 2.0, "observe": -5.2, "demo": 4.8, "metrics": -3.6},
    **{"lifecycle": -0.7, "policy": 0.7, "restoration": 1.4, "placement": 2.9},
    **{"replay": 3.6, "report": 5.6, "runs": 4.6, "traces": 4.6, "profiles": 2.0, "qos": -2.6},
}
"""Where a package stands on its floor, so that few arrows cross; others stand in the middle."""


def imports() -> dict[str, set[str]]:
    """The packages below `ROOT`, and which others each of them imports."""
    graph = grimp.build_graph(ROOT, cache_dir=None)
    found: dict[str, set[str]] = {}
    for module in sorted(graph.modules):
        parts = module.split(".")
        if len(parts) < 2 or parts[1] in SMALL:
            continue
        others = found.setdefault(parts[1], set())
        for imported in graph.find_modules_directly_imported_by(module):
            other = imported.split(".")[1:2]
            others.update(name for name in other if name != parts[1] and name not in SMALL)
    return found


def main() -> None:
    """Draw it."""
    found = imports()

    @cache
    def floor(package: str) -> int:
        return 1 + max((floor(other) for other in found[package]), default=-1)

    @cache
    def reach(package: str) -> frozenset[str]:
        return frozenset(found[package]).union(*(reach(other) for other in found[package]))

    place = {package: (COLUMNS.get(package, 0.0), floor(package) * 1.35) for package in found}
    figure, axes = pyplot.subplots(figsize=(9, 8))
    for package, others in found.items():
        for other in sorted(others):
            if any(other in reach(between) for between in others):
                continue
            (x, y), (end_x, end_y) = place[package], place[other]
            axes.annotate(
                "",
                (end_x, end_y + HEIGHT / 2),
                (x, y - HEIGHT / 2),
                arrowprops={"arrowstyle": "->", "color": "0.6", "linewidth": 0.8},
            )
    for package, (x, y) in place.items():
        body = package in ("engine", "sim")
        axes.text(
            x,
            y,
            package,
            ha="center",
            va="center",
            fontsize=12,
            bbox={
                "boxstyle": "round,pad=0.45",
                "facecolor": "#cfe3f5" if body else "#f4f4f4",
                "edgecolor": "0.35",
            },
        )
    axes.set_xlim(-6.2, 6.2)
    axes.set_ylim(-0.7, floor("cli") * 1.35 + 0.7)
    axes.axis("off")
    figure.tight_layout()
    matplotlib.rcParams["svg.hashsalt"] = ROOT  # the same picture from the same code
    figure.savefig(Path(__file__).with_name("architecture.svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
