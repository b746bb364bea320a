"""How long something takes on a device: medians of several rounds of several calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

ROUNDS = 5
"""Rounds of which the median counts."""
ROUND_SECONDS = {"cuda": 0.05, "cpu": 0.0}
"""Length of a round, about; one call at least. On a CPU nothing is measured, it is only run."""


def wait(device: str) -> None:
    """Until the device has done all that was asked of it."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(call: Callable[[], object], device: str) -> float:
    """Seconds per call of calls that follow each other, as the steps of a server do.

    The device is waited for after a round and not after a call. So the time is that of the kernels
    or that of launching them, whichever is longer.
    """
    for _ in range(2):
        call()
    wait(device)
    began = time.perf_counter()
    call()
    wait(device)
    calls = max(int(ROUND_SECONDS[device] / max(time.perf_counter() - began, 1e-6)), 1)
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(calls):
            call()
        wait(device)
        rounds.append((time.perf_counter() - began) / calls)
    return median(rounds)


def graphed(call: Callable[[], object], device: str) -> Callable[[], object]:
    """The call as one CUDA graph; on a CPU, which has none, the call itself."""
    if device != "cuda":
        return call
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):  # libraries set themselves up, which must not be captured
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay
