"""``tokenflow doctor --lines FILE``: a verdict on every launch in a file."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokenflow_sgl.cli.doctor_install import installation
from tokenflow_sgl.cli.doctor_launch import verdicts
from tokenflow_sgl.cli.failing import Exit, failing
from tokenflow_sgl.errors import FailedError, InputError

if TYPE_CHECKING:
    from tokenflow_sgl.engine.launch_verdict import LaunchVerdict


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """One launch of a file.

    Attributes:
        number: Of its first line, counted from 1.
        options: Words from the first that begins with two dashes on.
    """

    number: int
    options: tuple[str, ...]


def read_lines(text: str) -> list[LaunchLine]:
    """The launches of a file; empty lines and comments are none, a backslash joins lines.

    Raises:
        InputError: A line is no shell line, or names no options; or there is no line at all.
    """
    found: list[LaunchLine] = []
    pending, first = "", 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        first = first if pending else number
        pending += line
        if pending.endswith("\\"):
            pending = f"{pending[:-1]} "
            continue
        joined, pending = pending, ""
        try:
            words = shlex.split(os.path.expandvars(joined), comments=True)
        except ValueError as error:
            raise InputError(f"line {first} is no line of a shell: {error}") from None
        if not words:
            continue
        start = next((i for i, word in enumerate(words) if word.startswith("--")), None)
        if start is None:
            raise InputError(f"line {first} has no options: {joined.strip()[:60]}")
        found.append(LaunchLine(first, tuple(words[start:])))
    if not found:
        raise InputError("it has no launches")
    return found


def examine_lines(path: Path, console: Console) -> None:
    """Print the verdicts and their counts; exit with 1 unless all would start."""
    with failing():
        try:
            text = sys.stdin.read() if str(path) == "-" else path.read_text()
            launches = read_lines(text)
        except (InputError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: {error}") from None
        stopped = next((check for check in installation() if check.problem), None)
        if stopped is not None:
            raise FailedError(f"{stopped.problem}. Next: {stopped.step}")
    found = verdicts([launch.options for launch in launches])
    console.print(_verdict_table(launches, found))
    console.print(_count_table(found))
    accepted = sum(verdict.accepted for verdict in found)
    refused = sum(bool(verdict.refusals) for verdict in found)
    unseen = sum(verdict.accepted and verdict.unseen is not None for verdict in found)
    off = sum(verdict.off is not None for verdict in found)
    said = (
        f"{len(found)} launches: {accepted} accepted ({unseen} with a model that was not looked "
        f"at, {off} with the scheduler off), {refused} refused by tokenflow, "
        f"{len(found) - accepted - refused} not taken by SGLang's parser."
    )
    style = "bold green" if accepted == len(found) else "bold red"
    console.print(said, style=style, markup=False, highlight=False, soft_wrap=True)
    if accepted < len(found):
        raise typer.Exit(Exit.failed)


def _verdict_table(launches: list[LaunchLine], found: list[LaunchVerdict]) -> Table:
    table = Table("line", "verdict", "why", box=None, pad_edge=False)
    table.columns[2].overflow = "fold"
    for launch, verdict in zip(launches, found, strict=True):
        if verdict.accepted:
            why = f"the scheduler stays off: {verdict.off}" if verdict.off else ""
            if verdict.unseen:
                why = f"the model {verdict.unseen} was not looked at"
            table.add_row(str(launch.number), "accepted", Text(why))
            continue
        why = verdict.sglang or "\n".join(each.sentence for each in verdict.refusals)
        kind = "not taken" if verdict.sglang else "refused"
        table.add_row(str(launch.number), kind, Text(why), style="red")
    return table


def _count_table(found: list[LaunchVerdict]) -> Table:
    """How many launches each refusal stops, and how many it stops alone."""
    stopped: Counter[str] = Counter()
    alone: Counter[str] = Counter()
    for verdict in found:
        subjects = {each.subject for each in verdict.refusals}
        stopped.update(subjects)
        if len(subjects) == 1:
            alone.update(subjects)
    table = Table("refused", "launches", "for nothing else", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for subject, count in sorted(stopped.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(subject, str(count), str(alone[subject]))
    return table
