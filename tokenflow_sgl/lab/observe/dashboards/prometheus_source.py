"""Runs a panel's queries against a Prometheus server."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
from numpy.typing import NDArray

from tokenflow_sgl.lab.observe import ScrapeError, fetch

INTERVAL = "1m"
"""What `$__rate_interval` stands for: four scrapes of 15 s, as in Grafana's default."""
EVERYTHING: Mapping[str, str] = {"model": ".*", "instance": ".*", "class": ".*"}
_VARIABLE = re.compile(r"\$(\w+)")


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a panel.

    Attributes:
        labels: What tells it from the others.
        times: Unix seconds, shape (n,).
        values: NaN where there is none, shape (n,).
    """

    labels: Mapping[str, str]
    times: NDArray[np.float64]
    values: NDArray[np.float64]

    def name(self, legend: str) -> str:
        """The legend with the series' labels filled in."""
        for label, value in self.labels.items():
            legend = legend.replace("{{" + label + "}}", value)
        return legend


class Prometheus:
    """A Prometheus server that panels get their series from.

    Args:
        url: Its base URL.
        variables: What Grafana's variables stand for.
        interval: What `$__rate_interval` stands for.
    """

    def __init__(
        self, url: str, variables: Mapping[str, str] = EVERYTHING, interval: str = INTERVAL
    ) -> None:
        self._url = url.rstrip("/")
        self._values = {**variables, "__rate_interval": interval}

    def expression(self, expr: str) -> str:
        """The expression without variables."""
        values = self._values
        return _VARIABLE.sub(lambda found: values.get(found[1], found[0]), expr)

    def series(self, expr: str, start: float, end: float, step: float) -> list[Series]:
        """Values of an expression from `start` to `end`, Unix seconds, every `step` seconds.

        Raises:
            ScrapeError: No server answers there, or the expression is refused.
        """
        query = {"query": self.expression(expr), "start": start, "end": end, "step": step}
        found = self._get("/api/v1/query_range", query)
        times = np.arange(start, end + step / 2, step, dtype=np.float64)
        return [_series(each, times, start, step) for each in found]

    def now(self, expr: str) -> list[tuple[Mapping[str, str], float]]:
        """Labels and values of an expression at this moment."""
        found = self._get("/api/v1/query", {"query": self.expression(expr)})
        return [(each["metric"], float(each["value"][1])) for each in found]

    def label_values(self, label: str, metric: str, start: float, end: float) -> list[str]:
        """Values that a label of a metric had from `start` to `end`, Unix seconds, sorted.

        Args:
            label: Its name.
            metric: A name with or without a selector, which may have variables.
            start: Unix seconds.
            end: The same.
        """
        query = {"match[]": self.expression(metric), "start": start, "end": end}
        return sorted(map(str, self._get(f"/api/v1/label/{quote(label)}/values", query)))

    def _get(self, path: str, query: Mapping[str, Any]) -> list[Any]:
        page = f"{self._url}{path}?{urlencode(query)}"
        try:
            data = json.loads(fetch(page, missing="is this a Prometheus server?"))["data"]
            found = data["result"] if isinstance(data, dict) else data
        except (ValueError, KeyError, TypeError, RecursionError):
            found = None
        if not isinstance(found, list):
            raise ScrapeError(f"{self._url} does not answer like a Prometheus server")
        return found


def _series(found: Any, times: NDArray[np.float64], start: float, step: float) -> Series:
    values = np.full(len(times), math.nan)
    for moment, value in found["values"]:
        place = round((float(moment) - start) / step)
        if 0 <= place < len(values):
            values[place] = float(value)
    return Series(found["metric"], times, values)
