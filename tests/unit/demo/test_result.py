from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.lab.demo import run
from tokenflow_sgl.lab.demo.plot import draw
from tokenflow_sgl.lab.demo.result import BurstError, check, identical_answers, result_table
from tokenflow_sgl.lab.report import Figures

MakeFigures = Callable[..., Figures]


def rendered(table: Any) -> list[str]:
    console = Console(file=io.StringIO(), width=140)
    console.print(table)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


def test_the_table_shows_both_servers_and_their_ratio(make_figures: MakeFigures) -> None:
    stock = make_figures("stock", (1.0, 0.05), (9.0, 0.25))
    ours = make_figures("ours", (0.5, 0.05), (1.5, 0.05))
    lines = rendered(result_table(stock, ours))
    assert "ours / stock" in lines[0]
    mean = next(line for line in lines if "TTFT, mean" in line)
    assert "5.00" in mean and "1.00" in mean and "0.20x" in mean
    # The second stream comes every 0.25 s, its reader wants a token every 0.1 s.
    stalls = next(line for line in lines if "stalled time" in line)
    assert "2.85" in stalls and "0.00x" in stalls


@pytest.mark.parametrize(
    ("ttft_s", "colour"), [(0.5, "green"), (2.0, "red"), (1.02, None)], ids=str
)
def test_colour_means_better_or_worse(
    make_figures: MakeFigures, ttft_s: float, colour: str | None
) -> None:
    table = result_table(make_figures("a", (1.0, 0.05)), make_figures("b", (ttft_s, 0.05)))
    names, *_, ratios = (list(column.cells) for column in table.columns)
    cell = str(ratios[names.index("TTFT, mean")])
    assert cell == f"{ttft_s:.2f}x" if colour is None else f"[{colour}]" in cell


def test_answers_are_compared_token_for_token() -> None:
    one = {0: [5, 6, 7], 1: [8, 9], 2: []}
    assert identical_answers(one, {0: [5, 6, 7], 1: [8, 9], 2: []}) == 2
    assert identical_answers(one, {0: [5, 6, 7], 1: [9, 8], 2: []}) == 1
    assert identical_answers(one, {0: [5, 6]}) == 0


def test_a_run_with_failed_answers_or_an_invalid_one_is_not_compared(
    make_figures: MakeFigures,
) -> None:
    check(make_figures("a", (1.0, 0.05)))
    with pytest.raises(BurstError, match=r"a: 1 of 2 answers failed, .* HTTP 500: no memory"):
        check(make_figures("a", (1.0, 0.05), (1.0, 0.05), failed=1))
    with pytest.raises(BurstError, match="too slow"):
        check(make_figures("a", (1.0, 0.05), invalid=("The device was too slow.",)))


def test_the_picture_is_drawn(make_figures: MakeFigures, tmp_path: Path) -> None:
    path = tmp_path / "demo.png"
    draw(path, [make_figures("a", (1.0, 0.25)), make_figures("b", (0.5, 0.05))], "one reader")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000


@pytest.mark.parametrize(("spoil", "code"), [(False, 0), (True, 1)])
def test_one_wrong_token_fails_the_demo(
    make_figures: MakeFigures,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: bool,
    code: int,
) -> None:
    answers = {index: list(range(index, index + 20)) for index in range(60)}
    other = {index: ids.copy() for index, ids in answers.items()}
    other[41][7] += spoil
    judged = make_figures("made-up", *[(1.0, 0.05)] * 60)
    sides = [
        run.Side(SimpleNamespace(info=judged.info), each)  # type: ignore[arg-type]
        for each in (answers, other)
    ]
    monkeypatch.setattr(run, "_measure", lambda *_: sides)
    monkeypatch.setattr(run, "write_run", lambda *_: None)
    monkeypatch.setattr(run, "figures", lambda _: judged)
    result = CliRunner().invoke(app, ["demo", "--output", str(tmp_path)])
    assert result.exit_code == code, result.output
    said = " ".join(result.output.split())
    assert f"{60 - spoil} of 60 answers have the same tokens on both servers. This finds" in said
    assert "It does not find wrong KV" in said
