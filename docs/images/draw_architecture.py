"""Draws which package imports which, and which room of the engine: from the code itself.

    .venv/bin/python docs/images/draw_architecture.py

Writes architecture.svg and engine.svg. What is drawn stands one floor above the highest that it
imports, so all arrows lead down. An import that a longer path implies is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import grimp
import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

ROOT = "tokenflow_sgl"
LAB, ENGINE = f"{ROOT}.lab", f"{ROOT}.engine"
SMALL = {"errors", "choices", "pip_hints"}
"""Leaves that nearly every package imports: left out."""
HEIGHT, FLOOR = 0.62, 1.35
BODY, LAB_COLOUR, PLAIN = "#cfe3f5", "#fbead2", "#f4f4f4"
PLACES = {
    **{"cli": 0.0, "engine": -3.4, "lab.sim": 2.4, "lab.observe": -5.6, "lab.demo": 5.0},
    **{"lifecycle": -1.2, "policy": 0.3, "restoration": 1.6, "placement": 2.3, "metrics": -4.2},
    **{"lab.replay": 4.2, "lab.report": 6.0, "lab.runs": 5.2, "lab.traces": 5.2},
    **{"lab.profiles": 2.2, "qos": -2.6},
}
"""Where a package stands on its floor, so that few arrows cross; others stand in the middle."""
PARTS = {
    "starts": ("plugin", "flags", "config"),
    "shell": ("shell", "extended", "build", "features", "announcement"),
    "core": ("core", "admission", "view", "book", "body", "extension"),
    "beside": ("restore", "layerwise", "decode_server"),
    "below": ("kv", "frontend", "telemetry", "prefill_adder", "sglang"),
}
"""Rooms of the engine that are drawn, by what they are for; others are single small modules."""
PART_COLOURS = {
    **{"starts": PLAIN, "shell": "#cfe3f5", "core": "#d9efd4", "beside": "#fbead2"},
    "below": PLAIN,
}

Graph = Mapping[str, set[str]]


def packages() -> dict[str, set[str]]:
    """The packages below `ROOT`, those of lab/ one by one, and which others each imports."""

    def name(module: str) -> str:
        parts = module.split(".")[1:]
        return ".".join(parts[:2]) if parts[:1] == ["lab"] else "".join(parts[:1])

    return arrows(ROOT, name, SMALL | {"", "lab"})


def rooms() -> dict[str, set[str]]:
    """The rooms of the engine that are drawn, and which others each imports."""
    drawn = {room for part in PARTS.values() for room in part}
    below = len(ENGINE) + 1
    found = arrows(ENGINE, lambda module: module[below:].partition(".")[0], {""})
    return {room: through(room, found, drawn) for room in found if room in drawn}


def through(room: str, found: Graph, drawn: set[str]) -> set[str]:
    """What a room imports that is drawn, itself or by way of what is not."""
    seen, left, reached = {room}, [room], set()
    while left:
        for other in found[left.pop()] - seen:
            seen.add(other)
            if other in drawn:
                reached.add(other)
            else:
                left.append(other)
    return reached


def arrows(below: str, name: Callable[[str], str], leave_out: set[str]) -> dict[str, set[str]]:
    """What each module below a package imports of the others, under the names that `name` gives."""
    graph = grimp.build_graph(ROOT, cache_dir=None)
    found: dict[str, set[str]] = {}
    for module in sorted(graph.modules):
        if not module.startswith(below) or (own := name(module)) in leave_out:
            continue
        others = found.setdefault(own, set())
        for imported in graph.find_modules_directly_imported_by(module):
            if imported.startswith(below):
                others.add(name(imported))
        others -= {own, *leave_out}
    return found


def draw(found: Graph, places: Mapping[str, float], colours: Mapping[str, str], file: str) -> None:
    """One picture.

    Args:
        found: What each imports of the others.
        places: Where each stands on its floor; those without one are spread evenly.
        colours: Of those that are not plain.
        file: Its name.
    """

    @cache
    def floor(each: str) -> int:
        return 1 + max((floor(other) for other in found[each]), default=-1)

    @cache
    def reach(each: str) -> frozenset[str]:
        return frozenset(found[each]).union(*(reach(other) for other in found[each]))

    place: dict[str, tuple[float, float]] = {}
    for level in sorted({floor(each) for each in found}):
        row = [each for each in found if floor(each) == level]
        free = [each for each in row if each not in places]
        for number, each in enumerate(free):
            place[each] = (2.3 * (number - (len(free) - 1) / 2), level * FLOOR)
        place.update({each: (places[each], level * FLOOR) for each in row if each in places})
    figure, axes = pyplot.subplots(figsize=(9, 8))
    for each, others in found.items():
        for other in sorted(others):
            if any(other in reach(between) for between in others):
                continue
            (x, y), (end_x, end_y) = place[each], place[other]
            axes.annotate(
                "",
                (end_x, end_y + HEIGHT / 2),
                (x, y - HEIGHT / 2),
                arrowprops={"arrowstyle": "->", "color": "0.6", "linewidth": 0.8},
            )
    for each, (x, y) in place.items():
        box = {
            "boxstyle": "round,pad=0.45",
            "facecolor": colours.get(each, PLAIN),
            "edgecolor": "0.35",
        }
        label = each.replace("lab.", "lab/")
        axes.text(x, y, label, ha="center", va="center", fontsize=11, bbox=box)
    axes.set_xlim(-6.8, 6.8)
    axes.set_ylim(-0.7, max(y for _, y in place.values()) + 0.7)
    axes.axis("off")
    figure.tight_layout()
    matplotlib.rcParams["svg.hashsalt"] = ROOT  # the same picture from the same code
    figure.savefig(Path(__file__).with_name(file), metadata={"Date": None})


def main() -> None:
    """Draw both."""
    found = packages()
    colours = {each: LAB_COLOUR for each in found if each.startswith("lab.")}
    draw(found, PLACES, {**colours, "engine": BODY, "lab.sim": BODY}, "architecture.svg")
    parts = {room: PART_COLOURS[part] for part, named in PARTS.items() for room in named}
    draw(rooms(), {}, parts, "engine.svg")


if __name__ == "__main__":
    main()
