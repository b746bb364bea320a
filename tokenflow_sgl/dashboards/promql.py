"""The expressions that panels are made of."""

from __future__ import annotations

SERVER = 'model_name=~"$model",instance=~"$instance"'
"""Series of the servers that are chosen at the top of the dashboard."""
CLASS = SERVER + ',qos_class=~"$class"'
"""Of these, series of the chosen rate classes."""
RANGE = "[$__rate_interval]"


def rate(metric: str, by: str = "", where: str = SERVER) -> str:
    """Sum of a counter's rate, by labels."""
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate({metric}{{{where}}}{RANGE}))"


def quantile(share: float, metric: str, where: str = SERVER) -> str:
    """Quantile of a histogram's observations in the last interval."""
    return f"histogram_quantile({share:g}, {rate(f'{metric}_bucket', 'le', where)})"


def level(metric: str, where: str = SERVER) -> str:
    """Sum of a gauge over the servers."""
    return f"sum({metric}{{{where}}})"
