"""Which output tokens are reasoning: by SGLang's parser, or by the model's think tokens."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sglang.srt.managers.schedule_batch import Req

from tokenflow_sgl.engine.reasoning import TAIL, Reasoning
from tokenflow_sgl.engine.sglang.version import at_least

START, END, SPACE = 7, 8, 9


def config(end=None, opening=None):
    return SimpleNamespace(think_end_ids=end, self_opened_think_start_ids=opening)


class Tokenizer:
    def __init__(self, **words: int) -> None:
        self.words = words

    def get_vocab(self) -> dict[str, int]:
        return self.words

    def decode(self, ids: list[int]) -> str:
        return " " if ids[0] == SPACE else "word"


THINKS = Tokenizer(**{"<think>": START, "</think>": END})


def asked(prompt, output=(), required=False):
    """A request whose tokens SGLang itself counts, as it does with a parser."""
    req = SimpleNamespace(
        origin_input_ids=list(prompt),
        output_ids=list(output),
        require_reasoning=required,
        reasoning_tokens=0,
        _is_reasoning_over=False,
        _think_end_matcher=None,
        _think_end_match_len=0,
        _think_start_match_len=0,
    )
    req.update_reasoning_tokens = lambda ids, end: Req.update_reasoning_tokens(req, ids, end)
    return req


def tokens(reasoning: Reasoning, req) -> list[int]:
    """Reasoning so far after each output token, asked as the table asks."""
    whole, found, since = req.output_ids, [], 0
    for count in range(1, len(whole) + 1):
        req.output_ids = whole[:count]
        found.append(reasoning.tokens(req, since))
        if found[-1] < count:
            break
        since = count
    return found


def test_with_a_parser_sglang_says_what_reasons_and_counts() -> None:
    reasoning = Reasoning(config(end=[5, END]), THINKS)
    assert not reasoning.begins(asked([1, START]))
    req = asked([1], [3, 5, 5, END, 9], required=True)
    assert reasoning.begins(req)
    seen = []
    for token in req.output_ids:
        Req.update_reasoning_tokens(req, token, [5, END])
        seen.append(reasoning.tokens(req, 0))
    assert seen == [1, 2, 3, 4, 4]


@pytest.mark.skipif(not at_least("0.5.23"), reason="that SGLang knows no such model")
@pytest.mark.parametrize(
    ("output", "expected"),
    [([START, 6, 2, END, 9], [1, 2, 3, 4, 4]), ([START, 9], [1, 0]), ([9, 9], [0, 0])],
)
def test_with_a_parser_the_model_may_open_it_by_several_tokens(output, expected) -> None:
    opening = [START, 6]
    reasoning = Reasoning(config(end=[END], opening=opening), THINKS)
    req = asked([1])
    assert reasoning.begins(req)
    seen = []
    for token in output:
        req.output_ids.append(token)
        Req.update_self_opened_reasoning_tokens(req, token, opening, [END])
        seen.append(reasoning.tokens(req, 0))
    assert seen == expected


@pytest.mark.parametrize(
    ("prompt", "begins", "output", "expected"),
    [
        ([1, 2, START, SPACE], True, [4, END, 5], [1, 2, 2]),
        ([1, 2, START, SPACE, END, SPACE], False, [START, 4], None),
        ([1, 2], True, [START, 4, END, 5], [1, 2, 3, 3]),
        ([1, 2], True, [4, START], [0]),
        ([START, END, *[SPACE] * TAIL], True, [4], [0]),
        ([1, START, 2], True, [4, 4], [0]),
        ([1, END, 2], True, [START, 4], [1, 2]),
    ],
    ids=[
        "opened by the prompt",
        "closed by it",
        "opened by the model",
        "not opened",
        "old turn",
        "opened by the user",
        "closed by the user",
    ],
)
def test_without_a_parser_the_models_think_tokens_tell(prompt, begins, output, expected) -> None:
    reasoning = Reasoning(config(), THINKS)
    req = asked(prompt, output)
    assert reasoning.begins(req) is begins
    if expected is not None:
        assert tokens(reasoning, req) == expected


@pytest.mark.parametrize("tokenizer", [None, object(), Tokenizer(a=1)])
def test_models_without_think_tokens_do_not_think(tokenizer) -> None:
    reasoning = Reasoning(config(), tokenizer)
    assert not reasoning.begins(asked([1, START], required=True))


def test_a_model_that_only_closes_is_opened_by_no_token() -> None:
    reasoning = Reasoning(config(), Tokenizer(**{"</think>": END}))
    assert not reasoning.begins(asked([1, 2]))
