"""When requests arrive: bursts, Poisson, Gamma renewal, on/off and diurnal.

Each generator is a frozen dataclass; `times(rng, ...)` draws arrival times in seconds, sorted, from
0. The extent is either a number of requests or a duration.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tokenflow_sgl.lab.traces.parameters import (
    MOST_REQUESTS,
    MOST_SECONDS,
    FloatArray,
    check,
    extent,
    parameter,
)
from tokenflow_sgl.lab.traces.request import TraceError

_RARE, _OFTEN = 1e-6, 1e6
"""Requests per second: one in eleven days, and more than any server takes."""
_SHORT_S = 1e-6


class Arrivals(Protocol):
    """Draws the times at which requests arrive, seconds."""

    def times(
        self,
        rng: np.random.Generator,
        *,
        requests: int | None = None,
        duration_s: float | None = None,
    ) -> FloatArray:
        """Draw arrival times, seconds, never decreasing.

        Args:
            rng: Where randomness comes from.
            requests: Draw this many; or
            duration_s: draw those before this time, in seconds.

        Returns:
            Times in seconds, sorted, >= 0; with `duration_s` possibly none.

        Raises:
            TraceError: Not exactly one extent is given, or it does not fit the generator.
        """
        ...


@dataclass(frozen=True, slots=True)
class BurstArrivals:
    """Bursts of `size` requests at 0, `every_s`, 2 `every_s`, ...; without `every_s` only one.

    Without `size`, all requests form one burst.
    """

    size: int | None = parameter("requests in a burst", low=1, high=MOST_REQUESTS, default=None)
    every_s: float | None = parameter(
        "seconds from burst to burst", low=_SHORT_S, high=MOST_SECONDS, default=None
    )
    spread_s: float = parameter(
        "seconds over which a burst's requests are spread uniformly",
        low=0,
        high=MOST_SECONDS,
        default=0.0,
    )

    def __post_init__(self) -> None:
        check(self)

    def times(
        self,
        rng: np.random.Generator,
        *,
        requests: int | None = None,
        duration_s: float | None = None,
    ) -> FloatArray:
        """See `Arrivals.times`; a duration bounds the bursts' starts and needs `size`."""
        per_s = self.size / self.every_s if self.size and self.every_s else None
        extent(requests, duration_s, per_s)
        if requests is None:
            assert duration_s is not None
            if self.size is None:
                raise TraceError("BurstArrivals: size must be given with a duration")
            bursts = 1 if self.every_s is None else math.ceil(duration_s / self.every_s)
            requests = bursts * self.size
            extent(requests, None)
        size = requests if self.size is None else self.size
        if self.every_s is None and requests > size:
            raise TraceError(
                f"BurstArrivals: {requests} requests do not fit into one burst of {size}; "
                "every_s must be given"
            )
        times = np.arange(requests) // size * (self.every_s or 0.0)
        if self.spread_s:
            times = np.sort(times + rng.uniform(0.0, self.spread_s, requests))
        return np.asarray(times, float)


@dataclass(frozen=True, slots=True)
class PoissonArrivals:
    """A Poisson process: independent exponential gaps, `rate` requests per second on average."""

    rate: float = parameter("requests per second", low=_RARE, high=_OFTEN)

    def __post_init__(self) -> None:
        check(self)

    def times(
        self,
        rng: np.random.Generator,
        *,
        requests: int | None = None,
        duration_s: float | None = None,
    ) -> FloatArray:
        """See `Arrivals.times`."""
        extent(requests, duration_s, self.rate)
        if requests is not None:
            return np.cumsum(rng.exponential(1.0 / self.rate, requests))
        assert duration_s is not None
        return np.sort(rng.uniform(0.0, duration_s, rng.poisson(self.rate * duration_s)))


@dataclass(frozen=True, slots=True)
class GammaArrivals:
    """Independent Gamma gaps: `cv` above 1 is burstier than Poisson, below 1 more regular."""

    rate: float = parameter("requests per second", low=_RARE, high=_OFTEN)
    cv: float = parameter("standard deviation of the gaps over their mean", low=0.01, high=100)

    def __post_init__(self) -> None:
        check(self)

    def times(
        self,
        rng: np.random.Generator,
        *,
        requests: int | None = None,
        duration_s: float | None = None,
    ) -> FloatArray:
        """See `Arrivals.times`."""
        extent(requests, duration_s, self.rate)
        shape = self.cv**-2
        scale = 1.0 / (self.rate * shape)
        if requests is not None:
            return np.cumsum(rng.gamma(shape, scale, requests))
        assert duration_s is not None
        chunk = max(64, math.ceil(self.rate * duration_s))
        times = np.cumsum(rng.gamma(shape, scale, chunk))
        while times[-1] < duration_s:
            times = np.concatenate([times, times[-1] + np.cumsum(rng.gamma(shape, scale, chunk))])
        return times[times < duration_s]


class _PeriodicRate(ABC):
    """A Poisson process whose rate repeats; drawn by inverting its expected count over time."""

    __slots__ = ()

    @abstractmethod
    def _cumulative(self) -> tuple[FloatArray, FloatArray]:
        """One period as points: times from 0 to the period, expected requests until then."""

    def times(
        self,
        rng: np.random.Generator,
        *,
        requests: int | None = None,
        duration_s: float | None = None,
    ) -> FloatArray:
        """See `Arrivals.times`."""
        at, expected = self._cumulative()
        period, per_period = at[-1], expected[-1]
        extent(requests, duration_s, float(per_period / period))
        if requests is not None:
            counts = np.cumsum(rng.exponential(1.0, requests))
        else:
            assert duration_s is not None
            periods, rest = divmod(duration_s, period)
            total = float(periods * per_period + np.interp(rest, at, expected))
            counts = np.sort(rng.uniform(0.0, total, rng.poisson(total)))
        whole, rest_counts = np.divmod(counts, per_period)
        return np.asarray(whole * period + np.interp(rest_counts, expected, at))


@dataclass(frozen=True, slots=True)
class OnOffArrivals(_PeriodicRate):
    """A Poisson process that is on for `on_s` seconds, then off for `off_s`, and so on."""

    rate: float = parameter("requests per second while on", low=_RARE, high=_OFTEN)
    on_s: float = parameter("seconds on", low=_SHORT_S, high=MOST_SECONDS)
    off_s: float = parameter("seconds off", low=_SHORT_S, high=MOST_SECONDS)
    off_rate: float = parameter("requests per second while off", low=0, high=_OFTEN, default=0.0)

    def __post_init__(self) -> None:
        check(self)

    def _cumulative(self) -> tuple[FloatArray, FloatArray]:
        on = self.rate * self.on_s
        at = np.array([0.0, self.on_s, self.on_s + self.off_s])
        return at, np.array([0.0, on, on + self.off_rate * self.off_s])


@dataclass(frozen=True, slots=True)
class DiurnalArrivals(_PeriodicRate):
    """A Poisson process of rate `rate (1 + amplitude cos(2 pi (t - peak_s) / period_s))`."""

    rate: float = parameter("requests per second, mean over a period", low=_RARE, high=_OFTEN)
    amplitude: float = parameter("swing around the mean, as a share of it", low=0, high=1)
    period_s: float = parameter(
        "seconds from peak to peak", low=_SHORT_S, high=MOST_SECONDS, default=86_400.0
    )
    peak_s: float = parameter(
        "time of the first peak, seconds", low=0, high=MOST_SECONDS, default=43_200.0
    )

    def __post_init__(self) -> None:
        check(self)

    def _cumulative(self) -> tuple[FloatArray, FloatArray]:
        at = np.linspace(0.0, self.period_s, 8193)  # linear between: off by < 1e-7 of a period
        angle = 2 * math.pi / self.period_s
        swing = np.sin(angle * (at - self.peak_s)) + math.sin(angle * self.peak_s)
        expected = self.rate * (at + self.amplitude / angle * swing)
        # Rounding must not make it fall where the rate is nearly zero.
        return at, np.maximum.accumulate(expected)


ARRIVALS: Mapping[str, type[Arrivals]] = {
    "burst": BurstArrivals,
    "poisson": PoissonArrivals,
    "gamma": GammaArrivals,
    "onoff": OnOffArrivals,
    "diurnal": DiurnalArrivals,
}
"""Generators by the name that the command line and spec strings use."""
