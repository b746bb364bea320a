"""What a reader of words sees at a moment, and how a terminal shows it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tokenflow_sgl.lab.demo.dialogue import READERS, ReaderOfWords
from tokenflow_sgl.lab.demo.reader_rows import counts, picture
from tokenflow_sgl.lab.demo.spoken import Doing, Spoken
from tokenflow_sgl.lab.demo.text_demo import save_picture, telling_moment

MIA = ReaderOfWords("Mia", 2.0, "Why?")


def spoken(*times: float, complete: bool = True) -> Spoken:
    """One word at each moment."""
    answer = Spoken(MIA, 1.0)
    for number, moment in enumerate(times):
        answer.take([number], [moment], f" w{number}")
    answer.complete = complete
    return answer


@pytest.mark.parametrize(
    ("now_s", "doing", "text", "unread", "seconds"),
    [
        (0.5, Doing.absent, "", 0, 0.0),
        (2.5, Doing.waiting, "", 0, 1.5),
        (3.1, Doing.reading, " w0", 2, 0.0),
        (3.6, Doing.reading, " w0 w1", 1, 0.0),
        (4.4, Doing.reading, " w0 w1 w2", 0, 0.0),
        (6.0, Doing.stalled, " w0 w1 w2", 0, 1.5),
        (7.2, Doing.reading, " w0 w1 w2 w3", 0, 0.0),
        (7.6, Doing.done, " w0 w1 w2 w3", 0, 0.0),
    ],
)
def test_what_a_reader_does(now_s, doing, text, unread, seconds) -> None:
    seen = spoken(3.0, 3.0, 3.1, 7.0).at(now_s)
    assert (seen.doing, seen.text, seen.unread) == (doing, text, unread)
    assert seen.seconds == pytest.approx(seconds)


def test_an_answer_that_goes_on_is_not_done() -> None:
    assert spoken(3.0, complete=False).at(9.0).doing is Doing.stalled
    assert spoken(3.0).at(9.0).doing is Doing.done


def test_its_figures() -> None:
    answer = spoken(3.0, 3.0, 3.1, 7.0)
    assert answer.first_after_s == 2.0
    assert answer.stalled_s == pytest.approx(7.0 - 4.5)
    assert answer.read_until_s == 7.5
    assert answer.text == " w0 w1 w2 w3"


def test_as_many_moments_as_tokens() -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        Spoken(MIA, 0.0).take([1, 2], [0.1], "two")


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_all_readers_of_both(width) -> None:
    servers = {
        "stock": [Spoken(each, 0.0) for each in READERS],
        "tokenflow": [Spoken(each, 0.0) for each in READERS],
    }
    for answer in servers["tokenflow"]:
        answer.take([1], [0.5], "Light is scattered by molecules of the air, as")
    console = Console(file=io.StringIO(), width=width)
    console.print(picture(servers, 1.0, width))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == len(READERS) + 4, "nothing is wrapped: a terminal has 24 lines"
    assert max(map(len, lines)) <= width
    for reader in READERS:
        (row,) = (line for line in lines if reader.name in line)
        assert row.count(reader.name) == 2 and "1.0 s" in row
        assert "of the air, as" in row
        assert width == 80 or "scattered by molecules" in row
    assert "12 waiting" in lines[-2] and "12 stalled" in lines[-2]


def test_counts_leave_out_what_there_is_none_of() -> None:
    assert counts([spoken(3.0), spoken(5.0)], 3.2) == "1 waiting, 1 reading"


def test_the_picture_is_of_the_moment_that_tells_most(tmp_path) -> None:
    said = {"stock": [spoken(3.0), spoken(5.0)], "ours": [spoken(2.0), spoken(4.0)]}
    assert telling_moment(said) == 4.0
    save_picture(tmp_path / "words.svg", said)
    assert "w0" in (tmp_path / "words.svg").read_text()
