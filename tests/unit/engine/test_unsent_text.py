"""How many tokens are counted of which a chat has sent the text: never more than it has sent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.engine.frontend import unsent_text
from tokenflow_sgl.engine.frontend.token_texts import TokenTexts
from tokenflow_sgl.engine.frontend.unsent_text import UnsentText

WORDS = ["a", "b", "c", "ab", "abc", "<", "<t", ">", " ", "ba", ""]


class Words:
    """A tokenizer whose tokens are those words."""

    def decode(self, ids: list[int], **_how: bool) -> str:
        return "".join(WORDS[number] for number in ids)


def unsent(tokenizer: Any = None) -> UnsentText:
    return UnsentText(TokenTexts(tokenizer or Words(), None))


def ids_of(*words: str) -> list[int]:
    return [WORDS.index(word) for word in words]


def test_of_a_chunk_so_many_tokens_as_went_out() -> None:
    text = unsent()
    text.passed("ab<t>", ids_of("ab", "<t", ">"), 3, ["ab"])
    assert text.tokens == 1
    text.passed("abc", ids_of("a", "b", "c"), 6, [])
    assert text.tokens == 1, "nothing went out"
    text.passed("ba", ids_of("b", "a"), 8, ["<t>abc", "ba"])
    assert text.tokens == 8


def test_what_a_parser_drops_is_passed_over() -> None:
    text = unsent()
    text.passed("ab<t> ab", ids_of("ab", "<t", ">", " ", "ab"), 5, ["ab"])
    assert text.tokens == 1
    text.passed("abc abc", ids_of("abc", " ", "abc"), 8, ["ababc abc"])
    assert text.tokens == 8, "the tag never goes out"


def test_a_piece_that_stands_nowhere_counts_as_long_as_it_is() -> None:
    text = unsent()
    text.passed("abcabc", ids_of("abc", "abc"), 2, ["xyz!"])
    assert text.tokens == 1


def test_a_part_of_one_token_is_taken_for_all_of_it() -> None:
    text = unsent()
    text.passed("abc", ids_of("abc"), 1, ["a"])
    assert text.tokens == 1


def test_a_token_that_is_not_known_does_not_count() -> None:
    text = unsent()
    text.passed("abcab", [], 2, ["abc"])
    assert text.tokens == 0


def test_a_chunk_without_text_lets_no_text_before_it_go_out() -> None:
    text = unsent()
    text.passed("abcab", ids_of("abc", "ab"), 2, [])
    text.passed("", ids_of("", ""), 4, ["abc"])
    assert text.tokens == 1


def test_long_unsent_text_is_not_kept(monkeypatch) -> None:
    monkeypatch.setattr(unsent_text, "MOST_KEPT", 8)
    text = unsent()
    for made in range(2, 40, 2):
        text.passed("abcab", ids_of("abc", "ab"), made, [])
    assert len(text._text) <= 10
    text.passed("ba", ids_of("b", "a"), 40, ["abcab", "ba"])
    assert text.tokens == 40


CHUNKS = st.lists(st.lists(st.integers(0, len(WORDS) - 1), min_size=2, max_size=8), max_size=8)


@given(chunks=CHUNKS, data=st.data())
def test_never_more_than_went_out_and_never_less_than_before(chunks, data) -> None:
    """A parser that sends all in order, and keeps as much as it likes."""
    text, came, sent, ids = unsent(), "", 0, list[int]()
    for chunk in chunks:
        new = Words().decode(chunk)
        came, ids = came + new, ids + chunk
        upto = data.draw(st.integers(sent, len(came)))
        cut = data.draw(st.integers(sent, upto))
        before = text.tokens
        text.passed(
            new, chunk, len(ids), [each for each in (came[sent:cut], came[cut:upto]) if each]
        )
        sent = upto
        assert before <= text.tokens <= len(ids)
        assert len(Words().decode(ids[: text.tokens])) <= sent
        if new and sent == len(came):
            assert text.tokens == len(ids)


@pytest.mark.parametrize("tokenizer", [object(), Words()])
def test_without_a_tokenizer_what_is_whole_counts(tokenizer) -> None:
    text = unsent(tokenizer)
    text.passed("abcab", ids_of("abc", "ab"), 2, ["abcab"])
    assert text.tokens == 2
