"""Made-up runs of the search for parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tokenflow_sgl.lab.traces import open_trace, write_native


def here(function: Callable, shared: object, jobs: Sequence) -> Iterator:
    """Instead of processes."""
    for job in jobs:
        yield function(shared, job)


def row(setting: dict, **given: float) -> dict:
    """A run that is better the smaller eta is, down to 0.8."""
    waiting = 1.0 + abs(setting["eta"] - 0.8)
    return {
        "effective_throughput": 10.0,
        "token_throughput": 100.0,
        "mean_ttft_s": 1.0,
        "p99_ttft_s": 2.0,
        "mean_stall_s": waiting - 1.0,
        "mean_waiting_s": waiting,
        **given,
    }


def write_spoken(path: Path, spec: str) -> None:
    """A trace's requests, all of the class voice, which servers do not know by themselves."""
    trace = open_trace(spec)
    requests = (replace(each, rate=None, qos_class="voice") for each in trace.requests)
    write_native(path, replace(trace, requests=tuple(requests)))
