"""The folder traces/: its files are what its README says they are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tokenflow_sgl.cli.trace import trace_app
from tokenflow_sgl.lab.traces import load_native

FOLDER = Path(__file__).parents[3] / "traces"
COMMANDS = re.findall(r"^tokenflow trace (.*)$", (FOLDER / "README.md").read_text(), re.MULTILINE)


def test_every_file_has_a_command_and_is_small():
    made = [shlex.split(command)[-1] for command in COMMANDS]
    files = sorted(FOLDER.glob("*.jsonl"))
    assert sorted(made) == [f"traces/{path.name}" for path in files]
    assert len(files) >= 4
    assert all(path.stat().st_size < 60_000 for path in files)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.rpartition("/")[2])
def test_command_makes_the_file(command, tmp_path, is_balanced):
    *args, target = shlex.split(command)
    fresh = tmp_path / Path(target).name
    result = CliRunner().invoke(trace_app, [*args, str(fresh)])
    assert result.exit_code == 0, result.output
    kept, made = load_native(FOLDER / fresh.name), load_native(fresh)
    assert is_balanced(kept)
    assert len(kept.requests) == len(made.requests)
    assert kept.notes == made.notes
    # Times may differ in the last digit between machines; what is whole may not.
    for ours, theirs in zip(kept.requests, made.requests, strict=True):
        assert ours.arrival_s == pytest.approx(theirs.arrival_s, abs=2e-6)
        assert (ours.prompt_tokens, ours.output_tokens, ours.rate, ours.session, ours.turn) == (
            theirs.prompt_tokens,
            theirs.output_tokens,
            theirs.rate,
            theirs.session,
            theirs.turn,
        )
        assert ours.think_s == pytest.approx(theirs.think_s, abs=2e-3)
        assert (ours.prefix, ours.priority) == (theirs.prefix, theirs.priority)
    assert kept.priority_updates == made.priority_updates
