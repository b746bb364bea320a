"""Panels of dashboards and their queries, independent of Grafana's JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

SERVER = 'model_name=~"$model",instance=~"$instance"'
"""Series of the servers that are chosen at the top of the dashboard."""
CLASS = SERVER + ',qos_class=~"$class"'
"""Of these, series of the chosen rate classes."""
RANGE = "[$__rate_interval]"


class Kind(StrEnum):
    """How a panel draws its series."""

    LINES = "lines"
    STACKED = "stacked"
    NUMBER = "number"
    HEATMAP = "heatmap"
    STATES = "states"


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression of a panel, and what its series are called.

    Attributes:
        expr: With Grafana's variables in it.
        legend: Name of each series, with `{{label}}`.
        empty: Why it may return nothing on a healthy server; None: it always returns something
            under load.
    """

    expr: str
    legend: str
    empty: str | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel of a dashboard: title, queries, and how they are drawn.

    Attributes:
        title, description: What it shows, and how to read it.
        unit: Grafana's unit.
        queries: Its series.
        kind: How they are drawn.
        thresholds: (value from which, colour), besides the base colour.
        width: Of the 24 columns.
        base: Colour below the first threshold.
        signed: Its values can be below 0, where the axis of the others ends.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = Kind.LINES
    thresholds: tuple[tuple[float, str], ...] = ()
    width: int = 8
    base: str = "green"
    signed: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of the dashboard: values of a label.

    Attributes:
        name, title: In queries, and on the page.
        metric: Has the label, and a selector.
        label: Prometheus' name for it.
        many: Several or all can be chosen.
    """

    name: str
    title: str
    metric: str
    label: str
    many: bool = True

    @property
    def query(self) -> str:
        """How Grafana asks for the values."""
        return f"label_values({self.metric}, {self.label})"


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard: its rows of panels and its variables."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    tags: tuple[str, ...] = field(default=("tokenflow", "sglang"))

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All panels of this dashboard, row by row."""
        return tuple(panel for row in self.rows for panel in row.panels)


def rate(metric: str, by: str = "", where: str = SERVER) -> str:
    """Sum of a counter's rate, by labels."""
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate({metric}{{{where}}}{RANGE}))"


def quantile(share: float, metric: str, where: str = SERVER, by: str = "") -> str:
    """Quantile of a histogram's observations in the last interval, by labels."""
    grouped = f"le,{by}" if by else "le"
    return f"histogram_quantile({share:g}, {rate(f'{metric}_bucket', grouped, where)})"


def level(metric: str, where: str = SERVER) -> str:
    """Sum of a gauge over the servers."""
    return f"sum({metric}{{{where}}})"


def known(metric: str, where: str = SERVER) -> str:
    """Sum of a gauge over the servers that know it; the others have NaN."""
    return f"sum({metric}{{{where}}} > -Inf)"
