import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.lab.replay.answers import (
    MOST_TOKENS,
    ChatAnswer,
    ChunkError,
    CompletionsAnswer,
    GenerateAnswer,
)


def generate(ids, total, reason=None, text="x", **more):
    meta = {"finish_reason": reason, "prompt_tokens": 7, "completion_tokens": total, **more}
    return {"text": text, "output_ids": ids, "meta_info": meta}


def compact(chunk):
    return json.dumps(chunk, separators=(",", ":")).encode()


def spaced(chunk):
    return json.dumps(chunk).encode()


@pytest.mark.parametrize("write", [compact, spaced])
@pytest.mark.parametrize("keep", [False, True])
def test_generate_says_while_it_thinks_that_it_does(write, keep):
    answer = GenerateAnswer(keep=keep)
    seen = []
    for total, reasoned in ((1, 1), (3, 3), (5, 4), (6, 4)):
        ids = list(range(total))
        answer.take(write(generate(ids, total, reasoning_tokens=reasoned)))
        seen.append((answer.reasoning_tokens, answer.thinking))
    assert seen == [(1, True), (3, True), (4, False), (4, False)]


@pytest.mark.parametrize("write", [compact, spaced])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("cumulative", [False, True])
def test_generate_counts_cumulative_and_incremental_chunks_alike(write, keep, cumulative):
    chunks = [[7], [7, 8, 9], [7, 8, 9, 6]] if cumulative else [[7], [8, 9], [6]]
    answer = GenerateAnswer(keep=keep)
    reasons = [None, None, {"type": "length"}]
    taken = [
        answer.take(write(generate(ids, total, reason)))
        for ids, total, reason in zip(chunks, (1, 3, 4), reasons, strict=True)
    ]
    assert taken == [1, 2, 1]
    assert (answer.tokens, answer.finish_reason, answer.prompt_tokens) == (4, "length", 7)
    assert answer.ids == ([7, 8, 9, 6] if keep else [])
    assert answer.take(b"[DONE]") == 0
    assert not answer.uncounted


@pytest.mark.parametrize("write", [compact, spaced])
@pytest.mark.parametrize("total", [MOST_TOKENS + 1, 10**12])
def test_more_tokens_than_an_answer_can_have_are_not_believed(write, total):
    answer = GenerateAnswer()
    with pytest.raises(ChunkError, match="completion_tokens is above"):
        answer.take(write(generate([1], total)))
    assert answer.tokens == 0


def test_a_number_that_python_does_not_read_is_an_unreadable_chunk():
    chunk = compact(generate([1], 5)).replace(b":5", b":" + b"5" * 5001)
    with pytest.raises(ChunkError, match="cannot be read"):
        GenerateAnswer().take(chunk)


@given(st.text(), st.lists(st.integers(0, 5), max_size=8))
def test_what_an_answer_says_cannot_be_taken_for_its_length(text, steps):
    """Cheap and full reading agree, whatever the text; a nasty one is added to the drawn one."""
    nasty = text + '"completion_tokens":77,"finish_reason":null' + text
    cheap, full = GenerateAnswer(), GenerateAnswer(keep=True)
    total = 0
    for step in steps:
        total += step
        chunk = compact(generate(list(range(total)), total, text=nasty))
        assert cheap.take(chunk) == full.take(chunk) == step
    assert cheap.tokens == full.tokens == total


def test_a_repeated_chunk_brings_nothing():
    answer = GenerateAnswer()
    assert answer.take(compact(generate([1, 2], 2))) == 2
    assert answer.take(compact(generate([1, 2], 2))) == 0
    assert answer.take(compact(generate([1], 1))) == 0
    assert answer.tokens == 2


def test_an_abort_is_an_error_with_the_servers_words():
    answer = GenerateAnswer()
    answer.take(compact(generate([1], 1, {"type": "abort", "message": "out of memory"})))
    assert answer.finish_reason == "abort"
    assert answer.error == "aborted by the server: out of memory"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ({"message": "no memory", "code": 400}, "no memory"),
        ("gone", "gone"),
        ({"a": 1}, "{'a': 1}"),
    ],
)
def test_an_error_chunk_is_quoted(error, words):
    answer = GenerateAnswer()
    assert answer.take(compact({"error": error})) == 0
    assert answer.error == words


@pytest.mark.parametrize("kind", [GenerateAnswer, CompletionsAnswer, ChatAnswer])
@pytest.mark.parametrize("chunk", [b"{half", b"17", b'"text"', b"{}", b"\xff\xfe", b"[]"])
def test_garbage_is_refused_and_quoted(kind, chunk):
    with pytest.raises(ChunkError, match="a chunk cannot be read"):
        kind().take(chunk)


def usage(total):
    return {"prompt_tokens": 9, "completion_tokens": total, "total_tokens": 9 + total}


def test_completions_counts_by_the_servers_usage():
    answer = CompletionsAnswer(keep=True)

    def chunk(text, total, ids, reason=None):
        choice = {"index": 0, "text": text, "token_ids": ids, "finish_reason": reason}
        return compact({"choices": [choice], "usage": usage(total)})

    assert answer.take(chunk("ab", 2, [1, 2])) == 2
    assert answer.take(chunk("", 3, [3])) == 1  # half a character shows nothing yet
    assert answer.take(chunk("c", 4, [4], "stop")) == 1
    assert answer.take(compact({"choices": [], "usage": usage(4)})) == 0
    assert (answer.tokens, answer.finish_reason, answer.prompt_tokens) == (4, "stop", 9)
    assert (answer.ids, answer.text) == ([1, 2, 3, 4], "abc")
    assert not answer.uncounted


def test_chat_counts_by_the_servers_usage_and_keeps_no_reasoning():
    answer = ChatAnswer(keep=True)

    def chunk(delta, total=None, reason=None):
        fields = {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        return compact(fields if total is None else {**fields, "usage": usage(total)})

    assert answer.take(chunk({"role": "assistant", "content": ""})) == 0
    assert answer.take(chunk({"reasoning_content": "hm"}, 2)) == 2
    assert answer.take(chunk({"content": "yes"}, 3)) == 1
    assert answer.take(chunk({}, reason="length")) == 0
    # The last token had no text of its own; it came by now.
    assert answer.take(compact({"choices": [], "usage": usage(4)})) == 1
    assert (answer.tokens, answer.finish_reason, answer.text) == (4, "length", "yes")
    assert not answer.uncounted


@pytest.mark.parametrize("write", [compact, spaced])
def test_chat_tells_what_its_reader_does_not_see(write):
    answer = ChatAnswer()

    def take(delta, total):
        fields = {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        answer.take(write({**fields, "usage": usage(total)}))
        return answer.reasoning_tokens, answer.thinking

    assert take({"role": "assistant", "content": ""}, 0) == (0, False)
    assert take({"reasoning_content": 'he said "content":"x"', "content": None}, 2) == (2, True)
    assert take({"content": None}, 3) == (3, True)  # half a character
    assert take({"content": "yes"}, 5) == (3, False)
    assert take({"reasoning_content": "again"}, 6) == (3, False)


@pytest.mark.parametrize("write", [compact, spaced])
@pytest.mark.parametrize("delta", [{"content": "yes"}, {"tool_calls": [{"index": 0}]}], ids=str)
def test_chat_without_reasoning_is_seen_from_its_first_token(delta, write):
    answer = ChatAnswer()
    fields = {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    answer.take(write({**fields, "usage": usage(2)}))
    assert (answer.tokens, answer.reasoning_tokens, answer.thinking) == (2, 0, False)
