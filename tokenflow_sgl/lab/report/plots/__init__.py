"""Plots of the page, each an SVG element. Needs matplotlib."""

from __future__ import annotations

from tokenflow_sgl.lab.report.plots.canvas import MOST_RUNS
from tokenflow_sgl.lab.report.plots.latency import stall_cdf, tbt_cdf, ttft_cdf
from tokenflow_sgl.lab.report.plots.readers import buffers, stall_maps, streams
from tokenflow_sgl.lab.report.plots.server_plots import load_against_goodput, load_over_time

__all__ = [
    "MOST_RUNS",
    "buffers",
    "load_against_goodput",
    "load_over_time",
    "stall_cdf",
    "stall_maps",
    "streams",
    "tbt_cdf",
    "ttft_cdf",
]
