"""Slow tests in turn: two landings run all of them, and what found no time comes first later."""

from __future__ import annotations

from pathlib import Path

import pytest
import rotation
from rotation import PARTS, Turn, part_of

ROOT = Path(__file__).parents[3]
FILES = [f"tests/live/test_{number}.py" for number in range(40)]
ROWS = [f"tests/live/test_identity.py::test_tokens[{number}]" for number in range(40)]


def test_any_landings_in_a_row_have_all_parts() -> None:
    assert {Turn(number).part for number in range(7, 7 + PARTS)} == {*range(PARTS)}


def test_a_file_stays_whole_and_a_table_does_not() -> None:
    assert {part_of(f"{FILES[0]}::test_{name}") for name in "abcdefgh"} == {part_of(FILES[0])}
    assert {part_of(row) for row in ROWS} == {*range(PARTS)}


def test_what_came_last_comes_first_when_its_part_comes_again() -> None:
    assert Turn(4).order(FILES) == Turn(4 + PARTS).order(FILES)[::-1]


def test_the_end_says_what_was_not_begun_and_when_it_comes() -> None:
    first, *rest = Turn(6).said(80, ROWS[:1], 90)
    assert first == (
        "landing 6 had part 1 of 2 of the slow tests: 80 begun, 1 not begun, 90 in other parts."
    )
    assert "landing 7" in rest[0]
    assert "landing 8" in rest[1]
    assert rest[2].strip() == ROWS[0]


def test_the_landing_is_a_number() -> None:
    assert int((ROOT / ".ci" / "turn").read_text()) > 0


@pytest.mark.parametrize("begins", rotation.ONE_BY_ONE)
def test_files_that_are_taken_apart_are_there(begins) -> None:
    assert [*ROOT.glob(f"{begins}*.py")]
