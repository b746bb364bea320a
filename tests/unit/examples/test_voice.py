"""The voice of examples/voice.py: when it is silent, and which words it has."""

from __future__ import annotations

import pytest
from voice import Voice, complete_words


def test_words_in_time_are_spoken_without_a_silence() -> None:
    voice = Voice(words_per_minute=120.0)
    assert [voice.take(now) for now in (3.0, 3.1, 3.2, 4.4)] == [0.0] * 4
    assert voice.words == 4


def test_a_late_word_comes_after_a_silence() -> None:
    voice = Voice(words_per_minute=120.0)
    voice.take(1.0)
    voice.take(1.0)  # spoken until 2.0
    assert voice.take(2.75) == pytest.approx(0.75)
    assert voice.take(3.25) == pytest.approx(0.0), "the late word takes half a second, too"


@pytest.mark.parametrize(
    "pieces",
    [
        ["one two three"],
        list("one two three"),
        [" one", "", " two", " three "],
        ["one\n\ntwo\tthree"],
    ],
)
def test_words_are_the_same_however_the_text_is_cut(pieces: list[str]) -> None:
    assert list(complete_words(pieces)) == ["one", "two", "three"]


def test_a_word_is_taken_when_the_space_behind_it_is_there() -> None:
    arrived: list[str] = []

    def pieces():
        for piece in ("he", "llo", " wor", "ld"):
            arrived.append(piece)
            yield piece

    words = complete_words(pieces())
    assert next(words) == "hello"
    assert arrived == ["he", "llo", " wor"]
    assert list(words) == ["world"]
