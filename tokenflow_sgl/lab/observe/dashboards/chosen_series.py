"""What is drawn where not all models, servers and classes are: what the variables stand for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from tokenflow_sgl.errors import InputError
from tokenflow_sgl.lab.observe.dashboards.overview_board import OVERVIEW
from tokenflow_sgl.lab.observe.dashboards.prometheus_source import EVERYTHING, Prometheus


def chosen(
    source: Prometheus, wanted: Mapping[str, Sequence[str]], start: float, end: float
) -> Mapping[str, str]:
    """What each variable stands for.

    Args:
        source: Knows what there is.
        wanted: Values by the variable's name; none: all.
        start: Of the time that is drawn, Unix seconds.
        end: The same.

    Raises:
        InputError: There was no such value in that time.
        ScrapeError: Prometheus does not answer.
    """
    values = dict(EVERYTHING)
    for variable in OVERVIEW.variables:
        asked = wanted.get(variable.name)
        if not asked:
            continue
        there = source.label_values(variable.label, variable.metric, start, end)
        for value in asked:
            if value not in there:
                raise InputError(
                    f"--{variable.name} is {value!r}, of which Prometheus has nothing in that "
                    f"time; it has {', '.join(there) or 'no ' + variable.title.lower()}"
                )
        values[variable.name] = any_of(asked)
    return values


def any_of(values: Iterable[str]) -> str:
    """A regular expression of exactly these values, for a string of PromQL."""
    return literal("|".join(map(re.escape, values)))


def literal(value: str) -> str:
    """A value as it stands in a string of PromQL."""
    return value.replace("\\", "\\\\").replace('"', '\\"')
