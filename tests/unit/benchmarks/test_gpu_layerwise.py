"""benchmarks/gpu/layerwise.py at toy size: its kernels in Triton's interpreter, beside torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "benchmarks" / "gpu" / "layerwise.py"


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict:
    output = tmp_path_factory.mktemp("gpu") / "layerwise.json"
    done = subprocess.run(
        [sys.executable, SCRIPT, "--toy", "--output", output],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(output.read_text())


def test_the_kernels_do_what_torch_does(found) -> None:
    assert [row["page"] for row in found["differences"]] == [1, 8]
    for row in found["differences"]:
        assert row["attend"] < 1e-5
        assert row["store"] == row["copy"] == row["copy_by_few"] == 0.0


def test_all_of_it_runs(found) -> None:
    assert {row["way"] for row in found["copies"]} == {"load", "store"}
    assert [row["layers_on_host"] for row in found["steps"]] == 3 * [0, 1, 1, 2, 2, 4]
    assert all(row["model_s"] >= row["resident_s"] > 0.0 for row in found["steps"])
    assert len(found["attention"]) == 2


def test_without_a_gpu_it_says_so() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT],
        capture_output=True,
        text=True,
        env={"CUDA_VISIBLE_DEVICES": "", "PATH": "", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2
    assert "--toy runs at toy size on the CPU" in done.stderr
