"""Instances of the placement problem: tables of the choices, and a batch scaled for a solver."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tokenflow_sgl.choices import Staging
from tokenflow_sgl.contract import FloatArray, IntArray
from tokenflow_sgl.placement.kernels import Problem
from tokenflow_sgl.placement.layouts import Layouts
from tokenflow_sgl.placement.machine import Machine

NEW = -1
"""Choice of a stream that has none yet: nothing of it is migrated."""


@dataclass(frozen=True, slots=True, eq=False)
class Installed:
    """The placement that is in force, from which a new one is reached by migration.

    Attributes:
        layouts: Its choices; they may be others than those of the new placement.
        layout: Choice of each stream of the new batch, of shape (streams,), or `NEW`.
        steps: For how many steps the new placement is expected to last, > 0: a block that is
            migrated counts as that share of a block that each step moves.
    """

    layouts: Layouts
    layout: IntArray
    steps: float = 16.0


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """What the kernels need to know of the choices, as the fields of `Problem`."""

    numbers: IntArray
    needs: FloatArray
    first: IntArray
    kind: IntArray
    due: IntArray
    windows: FloatArray


def instance(
    sizes: FloatArray,
    layouts: Layouts,
    machine: Machine,
    installed: Installed | None = None,
) -> Problem:
    """One batch on one machine, in shares of the batch's blocks in one layer.

    Args:
        sizes: Blocks of each stream in one layer, of shape (streams,), > 0.0; at least one.
        layouts: The choices, for as many layers as the machine has.
        machine: Times, link and memory.
        installed: What migration begins from; None: it costs nothing.

    Raises:
        ValueError: There is no stream, a size is not above 0, or the numbers of layers differ.
    """
    if layouts.layers != machine.layers:
        raise ValueError(
            f"layouts are for {layouts.layers} layers; allowed here is {machine.layers}"
        )
    if not sizes.size or not (np.isfinite(sizes).all() and (sizes > 0.0).all()):
        raise ValueError("sizes has a value that is not above 0, or none; allowed are some above 0")
    tables = tables_of(layouts, machine.staging)
    total = float(sizes.sum())
    shares = sizes / total
    room = np.zeros(machine.layers + 1)
    room[1:] = machine.compute * (machine.bandwidth / total)
    if installed is None:
        moves = np.zeros((sizes.size, len(layouts)))
    else:
        loaded = _loaded(installed.layouts, layouts)[installed.layout]
        moves = loaded * (shares / installed.steps)[:, None]
    return Problem(
        shares,
        moves,
        room,
        machine.memory / total,
        tables.numbers,
        tables.needs,
        tables.first,
        tables.kind,
        tables.due,
        tables.windows,
    )


@lru_cache(maxsize=64)
def tables_of(layouts: Layouts, staging: Staging) -> Tables:
    """The tables of these choices, made once."""
    layers = layouts.layers
    numbers = np.array([len(layout) for layout in layouts.choices])
    copies: list[list[tuple[int, int]]] = [[] for _ in range(layers + 1)]
    windows = np.zeros((layers + 1, layers + 1, len(layouts)))
    for choice, layout in enumerate(layouts.choices):
        for before, layer in zip((0, *layout), layout, strict=False):
            copies[before].append((choice, layer))
            windows[: before + 1, layer:, choice] += 1.0
    flat = [copy for of_layer in copies for copy in of_layer]
    return Tables(
        numbers,
        layers - numbers + _groups(layouts, staging),
        np.cumsum([0, *(len(of_layer) for of_layer in copies)]),
        np.array([choice for choice, _ in flat], dtype=np.int64),
        np.array([layer for _, layer in flat], dtype=np.int64),
        windows.reshape(-1, len(layouts)),
    )


def _groups(layouts: Layouts, staging: Staging) -> FloatArray:
    """Choices that stage together; a group within another one says nothing more."""
    offloaded = layouts.offloaded()
    if staging is Staging.stream:
        return np.array([offloaded.any(axis=1)], dtype=np.float64)
    sets = {frozenset(np.flatnonzero(column)) for column in offloaded.T}
    largest = [one for one in sets if not any(one < other for other in sets)]
    groups = np.zeros((len(largest), len(layouts)))
    for group, members in enumerate(sorted(largest, key=sorted)):
        groups[group, sorted(members)] = 1.0
    return groups


@lru_cache(maxsize=64)
def _loaded(old: Layouts, new: Layouts) -> FloatArray:
    """Layers that come to the device, by old and new choice; the last row is that of `NEW`.

    What leaves the device costs nothing here: it goes the other way of the link, or was written
    through before.
    """
    resident = np.logical_not(new.offloaded())
    found = old.offloaded().astype(np.float64) @ resident.T.astype(np.float64)
    return np.vstack([found, np.zeros(len(new))])
