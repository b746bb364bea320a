"""Where a token's text ends in a text that came for several."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.engine.frontend.token_texts import CONTEXT, LONGEST, TokenTexts

WORDS = {1: "Hello", 2: " world", 3: "!", 4: "<pad>"}


class Words:
    """A tokenizer whose first word of a text has no space before it, as SentencePiece's."""

    def decode(self, ids, *, skip_special_tokens, spaces_between_special_tokens) -> str:
        words = [WORDS[each] for each in ids if each != 4 or not skip_special_tokens]
        return "".join(words).removeprefix(" ")


class Bytes:
    """A tokenizer that has a token for each byte."""

    def decode(self, ids, **_how) -> str:
        return bytes(ids).decode(errors="replace")


def test_each_token_has_its_word() -> None:
    texts = TokenTexts(Words(), None)
    assert texts.ends([1], [2, 2, 3], " world world!") == [6, 12, 13]
    assert texts.ends([], [2, 3], "world!") == [5, 6]
    assert texts.ends([1], [2], " world") == [6]


def test_special_tokens_have_text_if_the_request_says_so() -> None:
    assert TokenTexts(Words(), {}).ends([1], [4, 3], "!") == [0, 1]
    shown = TokenTexts(Words(), {"skip_special_tokens": False})
    assert shown.ends([1], [4, 3], "<pad>!") == [5, 6]


def test_what_cannot_be_told_goes_with_the_last_token() -> None:
    assert TokenTexts(Words(), None).ends([1], [2, 3], "something else") == [0, 14]
    assert TokenTexts(None, None).ends([1], [2, 3], " world!") == [0, 7]
    assert TokenTexts(Words(), None).ends([1], [2, 3], "") == [0, 0]


@given(st.text(min_size=1, max_size=30), st.integers(0, 20))
def test_no_character_is_cut_in_two(text, before) -> None:
    ids = list(text.encode())
    known = list(("x" * before).encode())
    ends = TokenTexts(Bytes(), None).ends(known, ids, text)
    assert len(ends) == len(ids) and ends == sorted(ends) and ends[-1] == len(text)
    if "\ufffd" not in text:
        for place, end in enumerate(ends):
            assert text[:end].encode() == bytes(ids[: len(text[:end].encode())])
            assert len(text[:end].encode()) <= place + 1


def test_a_character_that_began_before_is_with_the_token_that_ends_it() -> None:
    ids = list("aüb!".encode())
    assert TokenTexts(Bytes(), None).ends(ids[:2], ids[2:], "üb!") == [1, 2, 3]


def test_many_tokens_at_once_cost_each_its_own() -> None:
    """No decoding grows with the number of tokens."""
    asked: list[int] = []

    class Counting(Bytes):
        def decode(self, ids, **how) -> str:
            asked.append(len(ids))
            return super().decode(ids, **how)

    text = "aü" * 1000
    ids = list(text.encode())
    assert TokenTexts(Counting(), None).ends([], ids, text)[:4] == [1, 1, 2, 3]
    assert max(asked) <= CONTEXT + 2 and len(asked) <= 2 * len(ids)
    asked.clear()
    assert TokenTexts(Counting(), None).ends([], ids, "other" * 300)[-2:] == [0, 1500]
    assert len(asked) <= LONGEST + 1


@pytest.mark.parametrize("sampling", [None, {}, "no mapping", [1]])
def test_sampling_parameters_of_any_kind(sampling) -> None:
    assert TokenTexts(Words(), sampling).ends([], [1, 3], "Hello!") == [5, 6]
