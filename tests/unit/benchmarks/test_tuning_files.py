"""benchmarks/tuning: files that servers take, each named by a benchmark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tokenflow_sgl.engine.config import build

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
FILES = sorted((BENCHMARKS / "tuning").glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_server_takes_it_and_is_changed_by_it(path) -> None:
    assert build({"tuning": str(path)}).working_set != build({}).working_set or (
        build({"tuning": str(path)}).block_groups
    )


def test_each_is_named_and_each_that_is_named_is_there() -> None:
    text = "".join(path.read_text() for path in BENCHMARKS.rglob("*.py"))
    named = {*re.findall(r'tuning\("([\w-]+)"\)', text)}
    named |= {f"cycle-{seconds}" for seconds in ("0.5", "1", "1.5")}
    named |= {f"mu-{mu}" for mu in (1, 5, 20)}
    assert named == {path.stem for path in FILES}
