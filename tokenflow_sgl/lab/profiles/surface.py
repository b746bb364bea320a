"""A non-decreasing surface over a rectangular grid: bilinear inside, linear beyond.

Queried for every engine step, so this is scalar Python on tuples (about 1 us a query); arrays
would cost more for a single point.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from tokenflow_sgl.lab.profiles.document import ProfileError


class Surface:
    """Seconds over two axes, both strictly increasing, both at least two points long.

    Inside the grid the value is bilinear in the cell, so grid points are met exactly. Below the
    first point of an axis the value stays that of the first point. Beyond the last point it goes
    on with the slope of the last cell; where that slope is smaller than one further down the
    other axis, the larger one is taken, since only then the extrapolated surface is
    non-decreasing too.

    Args:
        name: What the surface is called in error messages.
        rows: First axis.
        columns: Second axis.
        values: `values[i][j]` at `(rows[i], columns[j])`, in seconds: positive, finite,
            and non-decreasing along both axes.

    Raises:
        ProfileError: The grid breaks one of these rules.
    """

    __slots__ = ("_columns", "_last_column", "_last_row", "_rows", "_values")

    def __init__(
        self,
        name: str,
        rows: Sequence[float],
        columns: Sequence[float],
        values: Sequence[Sequence[float]],
    ) -> None:
        _check(name, rows, columns, values)
        # One cell more on either axis carries the extrapolation, so that a query never branches.
        self._rows = (*rows, 2.0 * rows[-1])
        self._columns = (*columns, 2.0 * columns[-1])
        wide = [
            [*line, *extra] for line, extra in zip(values, _beyond(values, columns), strict=True)
        ]
        below = _beyond(list(zip(*wide, strict=True)), rows)
        self._values = (*(tuple(line) for line in wide), tuple(extra for (extra,) in below))
        self._last_row = len(rows) - 1
        self._last_column = len(columns) - 1

    def at(self, row: float, column: float) -> float:
        """Seconds at `(row, column)`."""
        rows, columns = self._rows, self._columns
        i = bisect_right(rows, row) - 1
        if i < 0:
            i, u = 0, 0.0
        else:
            if i > self._last_row:
                i = self._last_row
            low = rows[i]
            u = (row - low) / (rows[i + 1] - low)
        j = bisect_right(columns, column) - 1
        if j < 0:
            j, v = 0, 0.0
        else:
            if j > self._last_column:
                j = self._last_column
            low = columns[j]
            v = (column - low) / (columns[j + 1] - low)
        near, far = self._values[i], self._values[i + 1]
        first = near[j] + v * (near[j + 1] - near[j])
        second = far[j] + v * (far[j + 1] - far[j])
        return first + u * (second - first)


def _beyond(values: Sequence[Sequence[float]], axis: Sequence[float]) -> list[tuple[float]]:
    """The values at twice the axis' end, for each line: the last cell's slope, never falling."""
    slope = 0.0
    points = []
    for line in values:
        slope = max(slope, (line[len(axis) - 1] - line[len(axis) - 2]) / (axis[-1] - axis[-2]))
        points.append((line[len(axis) - 1] + slope * axis[-1],))
    return points


def _check(
    name: str,
    rows: Sequence[float],
    columns: Sequence[float],
    values: Sequence[Sequence[float]],
) -> None:
    for axis, points in (("first", rows), ("second", columns)):
        if len(points) < 2:
            raise ProfileError(f"{name}: the {axis} axis has {len(points)} points; needed are 2.")
        for before, after in zip((0.0, *points), points, strict=False):
            if not (math.isfinite(after) and after > before):
                raise ProfileError(
                    f"{name}: the {axis} axis has {after!r} after {before!r}; its points must be "
                    "positive and strictly increasing."
                )
    if len(values) != len(rows):
        raise ProfileError(
            f"{name}: {len(values)} rows of seconds for {len(rows)} points of the first axis."
        )
    for i, line in enumerate(values):
        if len(line) != len(columns):
            raise ProfileError(
                f"{name}: row {i} has {len(line)} values for {len(columns)} points of the second "
                "axis."
            )
        for j, value in enumerate(line):
            if not (math.isfinite(value) and value > 0.0):
                raise ProfileError(
                    f"{name}: row {i}, column {j} is {value!r}; seconds must be positive and "
                    "finite."
                )
            floor = max(values[i - 1][j] if i else 0.0, line[j - 1] if j else 0.0)
            if value < floor:
                raise ProfileError(
                    f"{name}: row {i}, column {j} is {value!r}, less than the {floor!r} of a "
                    "smaller step; more work must not take less time."
                )
