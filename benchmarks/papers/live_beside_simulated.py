"""Figures of real SGLang on an emulated device, and the simulator's of the same requests.

A result file has both for each contender: `{"requests": 60, "runs": {NAME: {"live": {...},
"simulated": {...}, "commit": "..."}}}`. The table has a row for each, and in brackets how far the
simulated figure is off: relative to the live one, for shares in points.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "burst"))

from run import commit

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of the table.

    Attributes:
        key: Its name in the results.
        heading: Of the column.
        form: How its value is written; a share ends with %.
        factor: From the result's unit to the heading's.
    """

    key: str
    heading: str
    form: str = "{:.2f}"
    factor: float = 1.0

    def live(self, value: float) -> str:
        """A measured figure."""
        return self.form.format(self.factor * value)

    def simulated(self, value: float, live: float) -> str:
        """A simulated figure, and by how much it differs."""
        shown = self.live(value)
        if self.form.endswith("%}"):
            return f"{shown} ({100 * (value - live):+.1f})"
        return f"{shown} ({value / live - 1:+.1%})" if live else shown


def keep(path: Path, name: str, order: Iterable[str], requests: int, **both: Figures) -> None:
    """Add a contender's figures, `live` and `simulated`, to a result file."""
    runs = json.loads(path.read_text())["runs"] if path.exists() else {}
    runs[name] = {**both, "commit": commit()}
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {"requests": requests, "runs": {each: runs[each] for each in order if each in runs}}
    path.write_text(json.dumps(kept, indent=1) + "\n")


def table(first: str, paths: Mapping[str, Path], columns: Iterable[Column]) -> str:
    """The table of these result files.

    Args:
        first: Heading of what tells the files apart.
        paths: The files, by that.
        columns: Of the table.
    """
    columns = tuple(columns)
    heads = [first, "served by", "", *(each.heading for each in columns), "commit"]
    lines = ["| " + " | ".join(heads) + " |"]
    lines.append("| ---: | --- | --- |" + " ---: |" * len(columns) + " --- |")
    for value, path in paths.items():
        for name, run in json.loads(path.read_text())["runs"].items():
            live, found = run["live"], run["simulated"]
            cells = [each.live(live[each.key]) for each in columns]
            lines.append("| " + " | ".join([value, name, "live", *cells, run["commit"]]) + " |")
            cells = [each.simulated(found[each.key], live[each.key]) for each in columns]
            lines.append("| " + " | ".join([value, name, "simulated", *cells, ""]) + " |")
    return "\n".join(lines) + "\n"
