"""Replays a trace against a server and records when every token arrives; reads and writes runs."""

from __future__ import annotations

from tokenflow_sgl.replay.client import replay
from tokenflow_sgl.replay.options import Api, ReplayError, ReplayOptions, Sessions
from tokenflow_sgl.replay.outcome import MAX_LAG_S
from tokenflow_sgl.replay.store import (
    REQUEST_SCHEMA,
    TOKEN_SCHEMA,
    Run,
    RunError,
    RunInfo,
    read_run,
    write_run,
)
from tokenflow_sgl.replay.target import Target, find_target

__all__ = [
    "MAX_LAG_S",
    "REQUEST_SCHEMA",
    "TOKEN_SCHEMA",
    "Api",
    "ReplayError",
    "ReplayOptions",
    "Run",
    "RunError",
    "RunInfo",
    "Sessions",
    "Target",
    "find_target",
    "read_run",
    "replay",
    "write_run",
]
