"""examples/own_policy.py in the simulator, by the command in its first lines."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import own_policy
import pytest
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.lab.runs import read_run

ROOT = Path(__file__).parents[3]


def seconds_to_the_end(run: Any) -> np.ndarray:
    """From the moment when each request was sent to its last token."""
    return np.asarray(run.requests["ended_s"]) - np.asarray(run.requests["sent_s"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The runs of the command as it is documented, by policy."""
    documented = re.search(r"tokenflow (simulate .*?)\n\n", own_policy.__doc__, re.DOTALL)
    command = shlex.split(documented[1].replace("\\\n", " "))
    folder = tmp_path_factory.mktemp("simulated") / "runs"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        done = CliRunner().invoke(app, [*command, "--output", str(folder)])
    assert done.exit_code == 0, done.output
    return {name: read_run(folder / name) for name in ("fcfs", "own_policy:ShortestFirst")}


def test_every_answer_is_complete(runs) -> None:
    for run in runs.values():
        assert run.tokens.num_rows == sum(run.requests["requested_tokens"].to_pylist())


def test_answers_are_complete_sooner_on_average(runs) -> None:
    stock, own = (seconds_to_the_end(run).mean() for run in runs.values())
    assert own < 0.9 * stock
