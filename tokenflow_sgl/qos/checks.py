"""Argument checks of this package: each error names the field, the value and what is allowed.

Used where a caller opens a stream or evaluates a recording, never per delivered token.
"""

from __future__ import annotations

import operator
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray: TypeAlias = NDArray[np.float64]


def positive(name: str, value: ArrayLike) -> FloatArray:
    """Return `value` (scalar or array) as float64, or raise unless all of it is finite and > 0."""
    array = np.asarray(value, dtype=np.float64)
    return _require(name, array, np.isfinite(array) & (array > 0), "a finite number > 0")


def non_negative(name: str, value: ArrayLike) -> FloatArray:
    """Return `value` (scalar or array) as float64, or raise unless all is finite and >= 0."""
    array = np.asarray(value, dtype=np.float64)
    return _require(name, array, np.isfinite(array) & (array >= 0), "a finite number >= 0")


def finite(name: str, value: ArrayLike) -> FloatArray:
    """Return `value` (scalar or array) as float64, or raise when any of it is NaN or infinite."""
    array = np.asarray(value, dtype=np.float64)
    return _require(name, array, np.isfinite(array), "a finite number")


def whole(name: str, value: int, *, minimum: int) -> int:
    """Return `value` as an int, or raise unless it is a whole number >= `minimum`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(
            f"{name} must be a whole number >= {minimum}, got {value!r} ({type(value).__name__})"
        ) from None
    if number < minimum:
        raise ValueError(f"{name} must be a whole number >= {minimum}, got {number}")
    return number


def decay_band(tau1: float, tau2: float) -> tuple[float, float]:
    """Return the decay band of section 7.1.3 as floats, or raise unless 0 <= tau1 < tau2."""
    low, high = float(non_negative("tau1", tau1)), float(non_negative("tau2", tau2))
    if not low < high:
        raise ValueError(f"tau2 must be > tau1 (fractions of the output), got {tau1=}, {tau2=}")
    return low, high


def token_times(values: ArrayLike) -> FloatArray:
    """Return delivery times (seconds) as float64, or raise unless 1-D, finite, never decreasing."""
    times = np.asarray(values, dtype=np.float64)
    if times.ndim != 1:
        raise ValueError(
            f"token_times must have one dimension (one time per token), got shape {times.shape}"
        )
    finite("token_times", times)
    backwards = np.diff(times) < 0
    if backwards.any():
        at = int(np.argmax(backwards)) + 1
        raise ValueError(
            f"token_times must never decrease, got {float(times[at])!r} s at index {at}"
            f" after {float(times[at - 1])!r} s"
        )
    return times


def _require(name: str, array: FloatArray, good: NDArray[np.bool_], allowed: str) -> FloatArray:
    if not np.all(good):
        if array.ndim == 0:
            raise ValueError(f"{name} must be {allowed}, got {float(array)!r}")
        at = int(np.argmin(good.ravel()))
        bad = float(array.ravel()[at])
        raise ValueError(f"{name} must hold {allowed} everywhere, got {bad!r} at index {at}")
    return array
