"""SGLang's own Triton kernels, in Triton's interpreter, read KV that lies layer by layer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def found() -> dict:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", TESTS / "helpers" / "triton_steps.py"],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_output_is_that_of_sglangs_own_pool(found) -> None:
    """Pages of 1 and 16 tokens, prefills, chunks, decode steps, other layers in each."""
    for run in found["runs"]:
        assert run["from_own_pool"] == 0.0
        assert run["from_torch"] < 1e-5
        assert run["switches"] > 5
        assert run["fetched"] > 0


def test_one_wrong_cell_is_noticed(found) -> None:
    assert found["noticed"]["steps"] > 0.05
    assert "the check at start failed: attention through the table" in found["noticed"]["at_start"]


def test_what_reads_through_other_lists_is_refused(found) -> None:
    refused = found["refused"]
    assert (
        "triton: in deterministic inference it reads new tokens in another"
        in refused["deterministic"]
    )
    assert "triton: for sliding windows it has places of its own" in refused["window"]
