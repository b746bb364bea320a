"""Options that commands share: each is one option of each command."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from tokenflow_sgl.cli.shared_options import shares_options


@dataclass(frozen=True, kw_only=True)
class Size:
    width: Annotated[int, typer.Option(min=1, help="In pixels.")] = 3
    deep: Annotated[bool, typer.Option("--deep")] = False


@pytest.fixture
def command():
    """Runs a command that has a size beside options of its own; returns what it was given."""
    app, given = typer.Typer(), []

    @app.command()
    @shares_options
    def draw(
        name: Annotated[str, typer.Option()],
        *,
        size: Size,
        times: Annotated[int, typer.Option()] = 1,
    ) -> None:
        """Draw it."""
        given.append((name, size, times))

    def run(*words: str):
        done = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
        return done, given

    return run


def test_defaults_are_those_of_the_group(command) -> None:
    done, given = command("--name", "a")
    assert done.exit_code == 0, done.output
    assert given == [("a", Size(), 1)]


def test_what_is_given_reaches_the_group(command) -> None:
    _, given = command("--name", "a", "--width", "7", "--deep", "--times", "2")
    assert given == [("a", Size(width=7, deep=True), 2)]


def test_options_of_a_group_are_checked_and_explained(command) -> None:
    done, given = command("--name", "a", "--width", "0")
    assert done.exit_code == 2 and "--width" in done.output and not given
    shown, _ = command("--help")
    assert "Draw it." in shown.output and "In pixels." in shown.output
    assert shown.output.index("--width") < shown.output.index("--times"), "in their order"


@dataclass(frozen=True, kw_only=True)
class FlatSize(Size):
    width: Annotated[int, typer.Option(help="In inches.")] = 5
    deep: bool = field(default=False, init=False)


def test_a_subclass_has_other_texts_and_leaves_options_out() -> None:
    app, given = typer.Typer(), []

    @app.command()
    @shares_options
    def draw(*, size: FlatSize) -> None:
        given.append(size)

    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    assert "In inches." in shown and "--deep" not in shown
    assert CliRunner().invoke(app, []).exit_code == 0
    assert given == [FlatSize()] and (given[0].width, given[0].deep) == (5, False)


def test_what_a_command_needs_is_still_needed(command) -> None:
    done, _ = command("--width", "7")
    assert done.exit_code == 2 and "--name" in done.output
