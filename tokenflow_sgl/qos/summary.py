"""Mean and tail of a set of measurements, in the unit of the measurements."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tokenflow_sgl.qos.checks import finite


@dataclass(frozen=True, slots=True)
class Summary:
    """Count, mean, percentiles and maximum; all but the count are NaN when nothing was measured.

    Percentiles interpolate linearly between the two nearest measurements (numpy's default), so a
    P99 of fewer than 100 values lies close to the maximum.
    """

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float
    max: float

    @classmethod
    def of(cls, values: ArrayLike) -> Summary:
        """Summarise `values` (any shape).

        Raises:
            ValueError: A value is NaN or infinite.
        """
        data = finite("values", values).ravel()
        if not data.size:
            return cls(0, *(math.nan,) * 7)
        tail = np.percentile(data, (50.0, 90.0, 95.0, 99.0, 99.9))
        p50, p90, p95, p99, p999 = (float(point) for point in tail)
        mean, top = float(data.mean()), float(data.max())
        return cls(int(data.size), mean, p50, p90, p95, p99, p999, top)
