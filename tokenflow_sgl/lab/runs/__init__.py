"""Recorded runs: what a replay or a simulation writes, and what every report reads."""

from __future__ import annotations

from tokenflow_sgl.lab.runs.folder import FolderError, new_folder
from tokenflow_sgl.lab.runs.other_tools import read_results
from tokenflow_sgl.lab.runs.recording import Recording, record
from tokenflow_sgl.lab.runs.store import (
    REQUEST_SCHEMA,
    TOKEN_SCHEMA,
    Run,
    RunError,
    RunInfo,
    read_run,
    runs_in,
    write_run,
)

__all__ = [
    "REQUEST_SCHEMA",
    "TOKEN_SCHEMA",
    "FolderError",
    "Recording",
    "Run",
    "RunError",
    "RunInfo",
    "new_folder",
    "read_results",
    "read_run",
    "record",
    "runs_in",
    "write_run",
]
