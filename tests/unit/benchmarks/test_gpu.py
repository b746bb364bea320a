"""benchmarks/gpu at toy size on the CPU: its model, its files, and the profile made of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.lab.profiles import DeviceProfile
from tokenflow_sgl.lab.profiles.measured import EAGER, KINDS, read_measurements

ROOT = Path(__file__).parents[3]
GPU = ROOT / "benchmarks" / "gpu"

pytestmark = pytest.mark.long


def run(script: str, *arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, GPU / script, *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu") / "results"
    assert "measured.csv and measured.json" in run("measure.py", "--toy", "--output", folder)
    return folder


def test_every_kind_is_measured(measured: Path) -> None:
    rows = read_measurements(measured / "measured.csv")
    assert {row.kind for row in rows} == {*KINDS, EAGER}
    # Contexts that do not fit into memory for many rows are left out.
    longest = [row.batch for row in rows if row.kind == "decode" and row.context == 512]
    assert longest == [1, 2]
    rest = json.loads((measured / "measured.json").read_text())
    assert rest["model"]["name"] == "toy"
    assert [item["chunk"] for item in rest["mixed"]] == [1, 8]
    assert {item["kind"] for item in rest["pieces"]} == {"load", "store"}
    assert rest["beside"] == []  # a CPU has no second stream


def test_a_profile_and_a_table_come_of_it(measured: Path) -> None:
    told = run("compare.py", measured, "--against", "rtx4090")
    profile = DeviceProfile.load(measured / "profile.json")
    assert profile.launch.decode > 0
    assert profile.layers == 2
    table = (measured / "table.md").read_text()
    assert table in told
    assert "| decode, 4 rows of 16 |" in table
    assert "| 2 rows of 8 and 1 new |" in table


def test_the_command_reads_the_same_file(measured: Path, tmp_path: Path) -> None:
    command = ["profile", "fit", str(measured / "measured.csv"), "--device", "mine"]
    command += ["--model", "llama3-8b", "--memory-gib", "140", "-o", str(tmp_path / "mine.json")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert DeviceProfile.load(tmp_path / "mine.json").device == "mine"


@pytest.mark.slow
def test_a_prefix_is_restored_as_it_was(tmp_path: Path) -> None:
    told = run("restore.py", "--toy", "--output", tmp_path / "restore.json")
    # Where both meet depends on the machine's load, and steps of other lengths round otherwise.
    differs = re.search(r"KV differs from what was stored by (\S+) of its norm", told)
    assert differs is not None
    assert float(differs[1]) < 0.02, "as the script itself demands"
    runs = json.loads((tmp_path / "restore.json").read_text())["rates"][0]["runs"]
    assert [row["way"] for row in runs] == ["computed", "loaded", "restored"]
    assert [row["computed_tokens"] for row in runs[:2]] == [512, 0]
    assert all(row["token_is_the_same"] for row in runs)


def test_kv_that_is_not_restored_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(GPU))
    import restore

    # The last tokens of each piece stay as they were, which is NaN.
    load = restore.Restored.load
    monkeypatch.setattr(restore.Restored, "load", lambda self, a, b: load(self, a, b - 1))
    monkeypatch.setattr("sys.argv", ["", "--toy", "--output", str(tmp_path / "restore.json")])
    assert restore.main() == 1


@pytest.mark.slow
@pytest.mark.parametrize("script", ["measure.py", "restore.py"])
def test_without_a_gpu_it_says_so(script: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, GPU / script, "--output", tmp_path / "found"],
        capture_output=True,
        text=True,
        env={"CUDA_VISIBLE_DEVICES": "", "PATH": "", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2
    assert "--toy runs at toy size on the CPU" in done.stderr


def test_a_prompt_comes_out_the_same_in_chunks_and_by_decoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(GPU))
    from llama import TOY, Llama, Step

    torch.manual_seed(1)
    model = Llama(TOY, 32, "cpu")
    tokens, angles = model.inputs(Step(chunk=16))
    whole = model.run(Step(chunk=16), tokens, angles)
    assert model.run(Step(chunk=6, prefix=10), tokens[10:], angles[10:]).equal(whole)
    assert model.run(Step(1, 16), tokens[15:], angles[15:]).equal(whole)
    # Beside a decoding row, whose KV comes first in memory.
    model.run(
        Step(1, 8, chunk=16), torch.cat((tokens[:1], tokens)), torch.cat((angles[:1], angles))
    )
    both = model.run(
        Step(1, 8, chunk=6, prefix=10),
        torch.cat((tokens[:1], tokens[10:])),
        torch.cat((angles[:1], angles[10:])),
    )
    assert both[1:].equal(whole)
