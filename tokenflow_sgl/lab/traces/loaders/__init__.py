"""Loaders: one file per format, each makes a `Trace` of a file, with strict accounting."""

from __future__ import annotations

from tokenflow_sgl.lab.traces.loaders.agent import Think, load_agent
from tokenflow_sgl.lab.traces.loaders.aiperf import load_aiperf
from tokenflow_sgl.lab.traces.loaders.azure import load_azure
from tokenflow_sgl.lab.traces.loaders.bailian import load_bailian
from tokenflow_sgl.lab.traces.loaders.bench import load_bench
from tokenflow_sgl.lab.traces.loaders.burstgpt import load_burstgpt
from tokenflow_sgl.lab.traces.loaders.inference_perf import load_inference_perf
from tokenflow_sgl.lab.traces.loaders.mooncake import (
    BLOCK_TOKENS,
    MOST_BLOCK_TOKENS,
    load_mooncake,
)
from tokenflow_sgl.lab.traces.loaders.native import load_native, write_native
from tokenflow_sgl.lab.traces.loaders.openai_batch import BatchLengths, load_openai_batch
from tokenflow_sgl.lab.traces.loaders.otel import SpanSessions, load_otel
from tokenflow_sgl.lab.traces.loaders.servegen import load_servegen
from tokenflow_sgl.lab.traces.loaders.servegen_chunks import load_servegen_chunks
from tokenflow_sgl.lab.traces.loaders.sharegpt import load_sharegpt
from tokenflow_sgl.lab.traces.loaders.sharegpt_texts import load_sharegpt_texts
from tokenflow_sgl.lab.traces.loaders.source import Progress
from tokenflow_sgl.lab.traces.loaders.text_lengths import CharsPerToken, TextMeasure, TokenizerFile

__all__ = [
    "BLOCK_TOKENS",
    "MOST_BLOCK_TOKENS",
    "BatchLengths",
    "CharsPerToken",
    "Progress",
    "SpanSessions",
    "TextMeasure",
    "Think",
    "TokenizerFile",
    "load_agent",
    "load_aiperf",
    "load_azure",
    "load_bailian",
    "load_bench",
    "load_burstgpt",
    "load_inference_perf",
    "load_mooncake",
    "load_native",
    "load_openai_batch",
    "load_otel",
    "load_servegen",
    "load_servegen_chunks",
    "load_sharegpt",
    "load_sharegpt_texts",
    "write_native",
]
