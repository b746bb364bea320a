"""Chunks of SGLang's put together and cut at any token: the client gets the same in the end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.engine.frontend.held_output import HeldOutput
from tokenflow_sgl.engine.frontend.token_texts import TokenTexts

LISTS = ("output_token_logprobs", "output_top_logprobs")


def word(token: int) -> str:
    return f" {token}" if token % 3 else ""  # every third token has no text


TOKENIZER = SimpleNamespace(decode=lambda ids, **_: "".join(map(word, ids)))


class Answer:
    """What SGLang's front end says of an answer of so many tokens, in chunks of these sizes."""

    def __init__(self, sizes: list[int], *, incremental: bool, thought: int = 0) -> None:
        self.incremental, self.thought = incremental, thought
        self.sizes, self.ids = sizes, list(range(sum(sizes)))
        self.growing: list[int] = []
        self.logprobs: list[list[float]] = []

    def chunks(self) -> Any:
        for size in self.sizes:
            done = len(self.growing)
            new = self.ids[done : done + size]
            self.growing += new
            self.logprobs += [[-0.5 * each] for each in new]
            since = done if self.incremental else 0
            yield {
                "text": "".join(map(word, self.growing[since:])),
                "output_ids": new if self.incremental else self.growing,
                "meta_info": {
                    "id": "a",
                    "finish_reason": None,
                    "prompt_tokens": 7,
                    "completion_tokens": len(self.growing),
                    "reasoning_tokens": min(self.thought, len(self.growing)),
                    "output_token_logprobs": self.logprobs[since:]
                    if self.incremental
                    else self.logprobs,
                    "output_token_logprobs_length": len(self.growing),
                },
            }

    def held(self) -> HeldOutput:
        texts = TokenTexts(TOKENIZER, None)
        return HeldOutput(texts, lambda: LISTS, incremental=self.incremental)

    def assert_told(self, chunks: list[dict[str, Any]]) -> None:
        """These chunks say all of it, none of it twice, and each one just what it claims."""
        told = 0
        for chunk in chunks:
            meta, since = chunk["meta_info"], told if self.incremental else 0
            told = meta["completion_tokens"]
            span = self.ids[since:told]
            assert chunk["output_ids"] == span
            assert chunk["text"] == "".join(map(word, span))
            assert meta["output_token_logprobs"] == [[-0.5 * each] for each in span]
            assert meta["output_token_logprobs_length"] == told
            assert meta["reasoning_tokens"] == min(told, self.thought)
            assert (meta["id"], meta["prompt_tokens"]) == ("a", 7)
            assert "output_top_logprobs" not in meta
        assert told == len(self.ids)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.lists(st.integers(1, 4), max_size=60),
    st.booleans(),
    st.integers(0, 5),
)
def test_any_cuts_say_the_same(sizes, cuts, incremental, thought) -> None:
    answer = Answer(sizes, incremental=incremental, thought=thought)
    held, got, pending, waiting = answer.held(), [], list(cuts), 0
    for chunk in answer.chunks():
        waiting += held.add(chunk)
        if pending and waiting:
            tokens = min(pending.pop(), waiting)
            got.append(held.cut(tokens))
            waiting -= tokens
    got += [held.cut(1) for _ in range(waiting)]
    assert held.rest() is None
    answer.assert_told(got)


def test_the_rest_is_one_chunk() -> None:
    answer = Answer([1, 5, 3], incremental=True)
    held = answer.held()
    for chunk in answer.chunks():
        held.add(chunk)
    first, rest = held.cut(1), held.rest()
    assert rest is not None and held.rest() is None
    answer.assert_told([first, rest])


def test_who_gets_all_output_in_each_chunk_needs_no_rest() -> None:
    answer = Answer([1, 5], incremental=False)
    held = answer.held()
    for chunk in answer.chunks():
        held.add(chunk)
    assert held.rest() is None


def test_what_sglang_keeps_is_left_alone() -> None:
    answer = Answer([2, 2], incremental=True)
    held, chunks = answer.held(), list(answer.chunks())
    for chunk in chunks:
        held.add(chunk)
    held.cut(3)
    assert [chunk["output_ids"] for chunk in chunks] == [[0, 1], [2, 3]]
    assert answer.logprobs == [[-0.5 * each] for each in range(4)]


def test_text_without_a_new_token_is_not_lost() -> None:
    held = HeldOutput(TokenTexts(TOKENIZER, None), lambda: (), incremental=True)
    meta = {"id": "a", "completion_tokens": 1}
    held.add({"text": " 1", "output_ids": [1], "meta_info": meta})
    held.cut(1)
    held.add({"text": "!", "output_ids": [], "meta_info": meta})
    rest = held.rest()
    assert rest is not None and rest["text"] == "!" and rest["output_ids"] == []


def test_a_server_without_a_tokenizer_has_ids_only() -> None:
    held = HeldOutput(TokenTexts(None, None), lambda: (), incremental=False)
    held.add({"output_ids": [4, 5, 6], "meta_info": {"id": "a", "completion_tokens": 3}})
    cut = held.cut(2)
    assert cut["output_ids"] == [4, 5] and "text" not in cut
