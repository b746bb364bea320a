"""A profile from measurements.

Steps follow the physical form that the scheduler learns online too (`costs.model`), fitted with
non-negative coefficients to the relative errors:

    decode  = d0 + d1 * batch + d2 * KV tokens
    prefill = p0 + p1 * tokens + p2 * attention
    copy    = latency + tokens * KV bytes per token / bandwidth

Where the measurements cover a grid, the table takes their medians on it and the form only fills
in between and beyond: real devices have steps in their times that no such form has. What the CPU
takes to launch a decode step kernel by kernel is the shortest of the `eager` steps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import RegularGridInterpolator

from tokenflow_sgl.costs.online import LinearCost
from tokenflow_sgl.lab.profiles.device_profile import DeviceProfile
from tokenflow_sgl.lab.profiles.document import ProfileError
from tokenflow_sgl.lab.profiles.launch import NO_LAUNCH, Launch
from tokenflow_sgl.lab.profiles.link import Link
from tokenflow_sgl.lab.profiles.measured import EAGER, KINDS, Measurement
from tokenflow_sgl.lab.profiles.model_shapes import Model
from tokenflow_sgl.lab.profiles.monotone import non_decreasing, rows
from tokenflow_sgl.lab.profiles.pool import graph_rows, host_pool_tokens, kv_pool_tokens
from tokenflow_sgl.lab.profiles.tables import DecodeTable, PrefillTable

DENSE = 3
"""Distinct values on either axis, all of them combined, that make measurements a grid."""

_Point = tuple[float, float]
_Form = Callable[[float, float], float]
_Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Residual:
    """How well the profile repeats the measurements of one kind.

    Attributes:
        kind: As in `Measurement`.
        rows: Number of measurements.
        method: `grid` or `form`.
        mean: Mean of |profile / measured - 1|.
        worst: Its largest value.
        worst_line: Line of that measurement in the file.
    """

    kind: str
    rows: int
    method: str
    mean: float
    worst: float
    worst_line: int


def fit(
    measurements: Sequence[Measurement], device: str, model: Model, memory: int, source: str
) -> tuple[DeviceProfile, list[Residual]]:
    """A profile that repeats the measurements, and how well it does.

    Args:
        measurements: Rows of all kinds that are needed, and of `EAGER`.
        device: Name of the device that was measured.
        model: What it served.
        memory: Bytes of its memory.
        source: What to note as the source of the times.

    Raises:
        ProfileError: A kind is missing or varies too little, or the model does not fit.
    """
    by_kind = {kind: [row for row in measurements if row.kind == kind] for kind in KINDS}
    decode, decode_method = _decode(by_kind["decode"])
    prefill, prefill_method = _prefill(by_kind["prefill"])
    eager = [row.seconds for row in measurements if row.kind == EAGER]
    pool = kv_pool_tokens(memory, model.weight_bytes, model.kv_bytes_per_token)
    profile = DeviceProfile(
        device=device,
        model=model.name,
        source=source,
        layers=model.layers,
        kv_bytes_per_token=model.kv_bytes_per_token,
        device_memory=memory,
        weight_bytes=model.weight_bytes,
        kv_pool_tokens=pool,
        host_pool_tokens=host_pool_tokens(pool),
        host_to_device=_link("load", by_kind["load"], model.kv_bytes_per_token),
        device_to_host=_link("store", by_kind["store"], model.kv_bytes_per_token),
        decode=decode,
        prefill=prefill,
        launch=Launch(decode=min(eager), graph_rows=graph_rows(memory)) if eager else NO_LAUNCH,
    )
    methods = {"decode": decode_method, "prefill": prefill_method, "load": "form", "store": "form"}
    return profile, [_residual(profile, kind, methods[kind], by_kind[kind]) for kind in KINDS]


def _decode(measured: list[Measurement]) -> tuple[DecodeTable, str]:
    _require("decode", "batch sizes", {row.batch for row in measured})
    _require("decode", "contexts", {row.context for row in measured})
    form = _form([(row.batch, row.context, row.seconds) for row in measured])
    grid = _Grid.of([((row.batch, row.context), row.seconds) for row in measured])
    batches = _axis(grid.first if grid else (), max(row.batch for row in measured))
    contexts = _axis(grid.second if grid else (), max(row.context for row in measured))
    values = np.array([[form(batch, mean) for mean in contexts] for batch in batches])
    if grid:
        values *= grid.correction(form)(*np.meshgrid(batches, contexts, indexing="ij"))
    table = DecodeTable(batches, contexts, rows(non_decreasing(values)))
    return table, "grid" if grid else "form"


def _prefill(measured: list[Measurement]) -> tuple[PrefillTable, str]:
    _require("prefill", "token counts", {row.new_tokens for row in measured})
    _require("prefill", "mean attended keys", {row.attended for row in measured})
    form = _form([(row.new_tokens, row.attended, row.seconds) for row in measured])
    # A grid of prefills has tokens and prefixes as its axes; the attended keys follow from both.
    single = [row for row in measured if row.batch == 1]
    grid = _Grid.of([((row.tokens, row.context), row.seconds) for row in single])
    met = {row.attended for row in single} if grid else ()
    tokens = _axis(grid.first if grid else (), max(row.new_tokens for row in measured))
    attended = _axis(met, max(row.attended for row in measured))
    values = np.array([[form(n, mean) for mean in attended] for n in tokens])
    if grid:
        correction = grid.correction(lambda n, prefix: form(n, prefix + n / 2))
        n, mean = np.meshgrid(tokens, attended, indexing="ij")
        values *= correction(n, mean - n / 2)
    table = PrefillTable(tokens, attended, rows(non_decreasing(values)))
    return table, "grid" if grid else "form"


def _form(points: list[tuple[float, float, float]]) -> _Form:
    """Seconds = c0 + c1 * amount + c2 * amount * mean, from (amount, mean, seconds)."""
    cost = LinearCost(features=3, memory=math.inf, leading=0)
    for amount, mean, seconds in points:
        cost.observe((1.0, amount, amount * mean), seconds)
    coefficients = cost.coefficients()
    assert coefficients is not None, "checked before: there are measurements"
    constant, per_unit, per_work = coefficients.tolist()
    return lambda amount, mean: float(constant + per_unit * amount + per_work * amount * mean)


@dataclass(frozen=True, slots=True)
class _Grid:
    """Medians of measurements that cover every combination of their two axes."""

    first: tuple[float, ...]
    second: tuple[float, ...]
    seconds: Mapping[_Point, float]

    @classmethod
    def of(cls, points: Iterable[tuple[_Point, float]]) -> _Grid | None:
        """The grid of (point, seconds) pairs, or None where they are none or too few.

        Values of the second axis that some of the first lack are left out: the longest contexts
        do not fit into memory for many rows.
        """
        seconds: dict[_Point, list[float]] = {}
        for point, value in points:
            seconds.setdefault(point, []).append(value)
        first = tuple(sorted({point[0] for point in seconds}))
        counts = Counter(point[1] for point in seconds)
        second = tuple(sorted(value for value in counts if counts[value] == len(first)))
        if min(len(first), len(second)) < DENSE:
            return None
        whole = {point: values for point, values in seconds.items() if point[1] in second}
        return cls(first, second, {point: median(values) for point, values in whole.items()})

    def correction(self, form: _Form) -> Callable[[_Array, _Array], _Array]:
        """Measured over `form`, for arrays of both axes: bilinear on the grid, constant beyond."""
        ratios = [[self.seconds[x, y] / form(x, y) for y in self.second] for x in self.first]
        inside = RegularGridInterpolator((self.first, self.second), ratios)

        def evaluate(x: _Array, y: _Array) -> _Array:
            x = np.clip(x, self.first[0], self.first[-1])
            y = np.clip(y, self.second[0], self.second[-1])
            return np.asarray(inside(np.stack((x, y), axis=-1)))

        return evaluate


def _link(kind: str, measured: list[Measurement], kv_bytes: int) -> Link:
    _require(kind, "token counts", {row.tokens for row in measured})
    cost = LinearCost(features=2, memory=math.inf, leading=1)
    for row in measured:
        cost.observe((1.0, float(row.tokens)), row.seconds)
    coefficients = cost.coefficients()
    assert coefficients is not None, "checked before: there are measurements"
    latency, per_token = coefficients.tolist()
    if per_token <= 0.0:
        raise ProfileError(f"{kind}: the copies do not get slower with their size.")
    return Link(bandwidth=kv_bytes / per_token, latency=latency)


def _require(kind: str, what: str, values: set[int] | set[float]) -> None:
    if len(values) < 2:
        raise ProfileError(
            f"{kind}: the measurements have {len(values)} different {what}; needed are 2 or more."
        )


def _axis(points: Iterable[float], last: float) -> tuple[float, ...]:
    # From 1 on, since a table stays flat below its first point.
    return tuple(sorted({1.0, *map(float, points), float(last)}))


def _residual(
    profile: DeviceProfile, kind: str, method: str, measured: list[Measurement]
) -> Residual:
    errors = [abs(_predicted(profile, row) / row.seconds - 1.0) for row in measured]
    worst = max(range(len(errors)), key=errors.__getitem__)
    return Residual(
        kind=kind,
        rows=len(measured),
        method=method,
        mean=sum(errors) / len(errors),
        worst=errors[worst],
        worst_line=measured[worst].line,
    )


def _predicted(profile: DeviceProfile, row: Measurement) -> float:
    if row.kind == "decode":
        return profile.decode_seconds(row.batch, row.batch * row.context)
    if row.kind == "prefill":
        return profile.prefill_seconds(row.new_tokens, row.new_tokens * row.attended)
    link = profile.host_to_device if row.kind == "load" else profile.device_to_host
    return link.seconds(row.tokens * profile.kv_bytes_per_token)
