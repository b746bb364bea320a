"""Closed choices of options, as `--help` lists them.

These are copies of lists in the packages behind the commands, because the command line must start
without loading those. tests/cli compares both.
"""

from __future__ import annotations

from enum import StrEnum


class Device(StrEnum):
    """Devices that profiles are made for."""

    h200 = "h200"
    h100 = "h100"
    a100 = "a100"
    b200 = "b200"
    b300 = "b300"
    l40s = "l40s"
    rtxpro6000 = "rtxpro6000"
    rtx4090 = "rtx4090"
    a6000 = "a6000"
    a5000 = "a5000"


class Model(StrEnum):
    """Models that profiles are made for."""

    llama3_8b = "llama3-8b"
    llama3_70b = "llama3-70b"
    qwen2_5_7b = "qwen2.5-7b"
    qwen2_5_32b = "qwen2.5-32b"
    qwen3_8b = "qwen3-8b"
    qwen3_32b = "qwen3-32b"


class WritePolicy(StrEnum):
    """When KV is copied to the host."""

    write_through = "write_through"
    write_back = "write_back"


class Router(StrEnum):
    """Which of several servers gets a request."""

    round_robin = "round-robin"
    least_loaded = "least-loaded"
    buffer_aware = "buffer-aware"


class Objective(StrEnum):
    """What a search improves."""

    effective = "effective"
    waiting = "waiting"
    p99_ttft = "p99-ttft"


class TbtRule(StrEnum):
    """When a request has met its objective for the time between tokens."""

    p99 = "p99"
    mean = "mean"
    every = "every"
