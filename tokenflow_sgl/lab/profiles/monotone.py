"""Measured grids made non-decreasing: more work never takes less time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def non_decreasing(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of the lowest surface above and the highest below that never fall.

    Measurements fall where a kernel for the next size happens to be faster, and by chance. A
    policy that may trust "less work is not slower" is worth more than these dips.

    Args:
        values: Two-dimensional.

    Returns:
        The same shape, non-decreasing along both axes; equal to `values` where that already is.
    """
    above: NDArray[np.float64] = np.maximum.accumulate(np.maximum.accumulate(values, 0), 1)
    turned = values[::-1, ::-1]
    below: NDArray[np.float64] = np.minimum.accumulate(np.minimum.accumulate(turned, 0), 1)
    return (above + below[::-1, ::-1]) / 2.0


def rows(values: NDArray[np.float64]) -> tuple[tuple[float, ...], ...]:
    """An array as the nested tuples of a table."""
    return tuple(tuple(line) for line in values.tolist())
