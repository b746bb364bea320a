"""Loaders: one file per format, each makes a `Trace` of a file, with strict accounting."""

from __future__ import annotations

from tokenflow_sgl.lab.traces.loaders.agent import Think, load_agent
from tokenflow_sgl.lab.traces.loaders.azure import load_azure
from tokenflow_sgl.lab.traces.loaders.bench import load_bench
from tokenflow_sgl.lab.traces.loaders.burstgpt import load_burstgpt
from tokenflow_sgl.lab.traces.loaders.mooncake import load_mooncake
from tokenflow_sgl.lab.traces.loaders.native import load_native, write_native
from tokenflow_sgl.lab.traces.loaders.servegen import load_servegen
from tokenflow_sgl.lab.traces.loaders.sharegpt import load_sharegpt
from tokenflow_sgl.lab.traces.loaders.source import Progress

__all__ = [
    "Progress",
    "Think",
    "load_agent",
    "load_azure",
    "load_bench",
    "load_burstgpt",
    "load_mooncake",
    "load_native",
    "load_servegen",
    "load_sharegpt",
    "write_native",
]
