"""Replays a trace against a server and records when every token arrives."""

from __future__ import annotations

from tokenflow_sgl.lab.replay.outcome import MAX_LAG_S
from tokenflow_sgl.lab.replay.replay_options import ReplayError, ReplayOptions
from tokenflow_sgl.lab.replay.replayer import replay
from tokenflow_sgl.lab.replay.target import Target, find_target

__all__ = [
    "MAX_LAG_S",
    "ReplayError",
    "ReplayOptions",
    "Target",
    "find_target",
    "replay",
]
