"""Servers that do not say with each chunk how many tokens it has."""

import asyncio
import json
from array import array
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replaying.stub import Behaviour, serve

from tokenflow_sgl.choices import Api
from tokenflow_sgl.lab.replay import ReplayOptions, find_target, replay
from tokenflow_sgl.lab.replay.answers import ChatAnswer, CompletionsAnswer
from tokenflow_sgl.lab.replay.counting import how_counted
from tokenflow_sgl.lab.replay.spreading import spread
from tokenflow_sgl.lab.replay.stream import Stream
from tokenflow_sgl.qos import evaluate_stream

OPENAI = [Api.completions, Api.chat]


@given(st.integers(0, 500), st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_tokens_go_by_text_and_none_is_lost(tokens, sizes):
    counts = spread(tokens, sizes)
    assert (len(counts), sum(counts)) == (len(sizes), tokens)
    assert counts[0] >= min(tokens, 1)  # the first token came with the first text
    assert min(counts) >= int(tokens >= len(sizes))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 20))
def test_no_chunk_is_a_token_off_where_all_have_one(sizes, per_byte):
    tokens = per_byte * sum(sizes)
    assert spread(tokens, sizes) == [per_byte * size for size in sizes]


def test_equal_chunks_get_equal_shares():
    assert spread(160, [12] * 40) == [4] * 40
    assert spread(40, [12] * 40) == [1] * 40
    assert spread(2, [5, 5, 5, 5]) == [1, 0, 1, 0]


def delta(reason=None, usage=None, **fields):
    chunk = {"choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}
    return _written(chunk, usage)


def end(total, **more):
    return _written({"choices": []}, {"completion_tokens": total, **more})


def _written(chunk, usage):
    told = {} if usage is None else {"usage": {"prompt_tokens": 9, **usage}}
    return json.dumps({**chunk, **told}, separators=(",", ":")).encode()


def taken(answer, *chunks):
    """Tokens of each chunk that brought some, in the end, as a stream stamps them."""
    counts = []
    for chunk in chunks:
        if new := answer.take(chunk):
            counts.append(new)
        if answer.settled:
            counts[-len(answer.settled) :] = answer.settled
    assert sum(counts) == answer.tokens
    return counts


@pytest.mark.parametrize("keep", [False, True])
def test_the_reported_total_is_shared_among_the_chunks_by_their_text(keep):
    answer = ChatAnswer(keep=keep)
    role = delta(role="assistant", content="")
    texts = [delta(content="abcd" * size) for size in (1, 3, 2)]
    assert taken(answer, role, *texts, delta("stop"), end(12)) == [2, 6, 4]
    assert (answer.shared, answer.shared_tokens, answer.uncounted) == (3, 12, [])
    assert (answer.prompt_tokens, answer.finish_reason) == (9, "stop")


def test_the_total_may_come_with_the_last_text():
    usage = {"completion_tokens": 8}
    chunks = [delta(content="ab"), delta("stop", usage, content="cd")]
    assert taken(ChatAnswer(), *chunks) == [4, 4]


def test_a_total_of_every_other_chunk_is_shared_between_it_and_the_one_before():
    answer = ChatAnswer()
    chunks = [
        delta(content="ab"),
        delta(None, {"completion_tokens": 4}, content="ab"),
        delta(content="ab"),
        delta(None, {"completion_tokens": 10}, content="ab"),
    ]
    assert taken(answer, *chunks, end(10)) == [2, 2, 3, 3]


@pytest.mark.parametrize("keep", [False, True])
def test_a_chunk_without_usage_after_chunks_with_it_is_not_counted_twice(keep):
    """SGLang sends what its parsers have left at the end of a tool call without usage."""
    calls = [{"index": 0, "function": {"arguments": '"}'}}]
    chunks = [delta(None, {"completion_tokens": 5}, content="ab"), delta(tool_calls=calls)]
    assert taken(ChatAnswer(keep=keep), *chunks, end(5)) == [5, 0]


def test_calls_of_tools_are_text_too():
    name = [{"index": 0, "function": {"name": "look", "arguments": ""}}]
    arguments = [{"index": 0, "function": {"name": None, "arguments": "x" * 12}}]
    chunks = [delta(tool_calls=name), delta(tool_calls=arguments), end(8)]
    assert taken(ChatAnswer(), *chunks) == [2, 6]


def test_bytes_count_and_not_letters():
    """A token has about as many bytes in every script."""
    assert taken(ChatAnswer(), delta(content="abcdef"), delta(content="你好"), end(6)) == [3, 3]


def test_usage_of_no_tokens_says_nothing_while_text_comes():
    none = {"completion_tokens": 0}
    chunks = [delta(None, none, content="ab"), delta(None, none, content="ab"), end(6)]
    assert taken(ChatAnswer(), *chunks) == [3, 3]
    answer = ChatAnswer()
    assert taken(answer, *chunks[:2], end(0)) == [1, 1]
    assert len(answer.uncounted) == 2
    null = {"completion_tokens": None}
    assert taken(ChatAnswer(), delta(None, null, content="ab"), end(3)) == [3]


def test_the_servers_token_ids_count_where_no_usage_comes():
    def chunk(*ids):
        choice = {"index": 0, "text": "ab", "token_ids": ids, "finish_reason": None}
        return _written({"choices": [choice]}, None)

    answer = CompletionsAnswer(keep=True)
    assert taken(answer, chunk(1, 2, 3), chunk(4), end(4)) == [3, 1]
    assert (answer.shared, answer.uncounted, answer.ids) == (0, [], [1, 2, 3, 4])


def test_shared_reasoning_is_not_for_the_reader():
    answer = ChatAnswer()
    chunks = [delta(reasoning_content="abcdef"), delta(reasoning="abcdef"), delta(content="abcdef")]
    assert taken(answer, *chunks) == [1, 1, 1]
    assert (answer.reasoning_tokens, answer.thinking) == (2, False)
    assert taken(answer, end(12))[-3:] == [4, 4, 4]
    assert answer.reasoning_tokens == 8


def test_shared_reasoning_with_a_total_in_between():
    answer = ChatAnswer()
    chunks = [
        delta(reasoning_content="abc"),
        delta(None, {"completion_tokens": 4}, reasoning_content="abc"),
        delta(reasoning_content="abc"),
        delta(content="abc"),
    ]
    assert taken(answer, *chunks, end(10)) == [2, 2, 3, 3]
    assert answer.reasoning_tokens == 7


@pytest.mark.parametrize("field", ["reasoning_tokens", "completion_tokens_details"])
@pytest.mark.parametrize("often", [False, True])
def test_reasoning_that_was_never_streamed_did_not_arrive(field, often):
    """Not as text of the first chunk: the reader would seem to have it to read."""
    told = {"reasoning_tokens": 50} if field == "reasoning_tokens" else {field: None}
    if field != "reasoning_tokens":
        told = {field: {"reasoning_tokens": 50}}
    usages = [{"completion_tokens": total, **told} if often else None for total in (52, 54)]
    answer = ChatAnswer()
    chunks = [delta(None, usage, content="abcd") for usage in usages]
    assert taken(answer, *chunks, end(54, **told)) == [2, 2]
    assert (answer.reasoning_tokens, answer.unstreamed) == (0, 50)


@pytest.mark.parametrize("often", [False, True])
def test_reasoning_that_was_streamed_did(often):
    told = [{"completion_tokens": total, "reasoning_tokens": 4} for total in (4, 6)]
    usage = told if often else [None, None]
    answer = ChatAnswer()
    chunks = [delta(None, usage[0], reasoning_content="abcd"), delta(None, usage[1], content="ab")]
    counts = taken(answer, *chunks, end(6, reasoning_tokens=4))
    assert (counts, answer.reasoning_tokens, answer.unstreamed) == ([4, 2], 4, 0)


def test_completions_stream_their_reasoning_as_text():
    def chunk(text):
        return _written({"choices": [{"text": text, "finish_reason": None}]}, None)

    answer = CompletionsAnswer()
    assert taken(answer, chunk("abcd"), chunk("abcd"), end(8, reasoning_tokens=6)) == [4, 4]


@pytest.mark.parametrize("api", OPENAI)
def test_a_total_at_the_end_makes_a_run_of_as_many_tokens(ask, on_stub, rows, api):
    """As the issue saw it: 40 tokens of 160, and stalls of a reader who always had text."""
    options = ReplayOptions(api=api, token_ids=(0, 9))
    _, run = on_stub(
        [ask(output=160)] * 3, options, tokens_per_chunk=4, usage=False, token_ids=False
    )
    for row in rows(run):
        assert (row["output_tokens"], len(row["times"])) == (160, 160)
        assert len(set(row["times"])) <= 40
    assert not any("tokens" in reason for reason in run.info.invalid)
    (note,) = [note for note in run.info.target["notes"] if "shared among" in note]
    assert "In 3 of 3 answers" in note and "480 tokens were shared among 120 chunks" in note


def test_a_reader_whose_text_came_in_time_did_not_stall():
    """The issue's stream: four tokens every 61.5 ms, 65 tokens/s, for a reader of 20."""

    class Owner:
        tokens, ttft_s = 0, array("d")

        def forget(self, stream):
            pass

    answer = ChatAnswer()
    stream = Stream(Owner(), b"", answer, 20.0, lambda stream: None)
    stream.read(0.0, b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    for number in range(40):
        stream.read(0.0615 * number, b"data: %b\n\n" % delta(content=" and so  on "))
    stream.read(2.46, b"data: %b\n\n" % delta("length"))
    stream.read(2.46, b"data: %b\n\ndata: [DONE]\n\n" % end(160))
    judged = evaluate_stream(
        np.array(stream.times), rate=20.0, arrival=0.0, output_tokens=160, until=2.46
    )
    assert len(stream.times) == stream._client.tokens == 160
    assert judged.stall_seconds == 0
    assert 64 < 160 / 2.46 < 66


@pytest.mark.parametrize("api", OPENAI)
def test_without_any_total_a_run_is_invalid(ask, on_stub, rows, api):
    options = ReplayOptions(api=api, token_ids=(0, 9))
    _, run = on_stub(
        [ask(output=8)] * 2,
        options,
        tokens_per_chunk=4,
        usage=False,
        final_usage=False,
        token_ids=False,
    )
    assert [row["output_tokens"] for row in rows(run)] == [2, 2]
    (reason,) = [reason for reason in run.info.invalid if "tokens" in reason]
    assert reason.startswith("The server did not say how many tokens 2 of 2 answers have")
    assert " Next: " in reason


def records(*answers):
    """Records whose streams have these answers, as far as counting looks."""
    return [SimpleNamespace(stream=SimpleNamespace(answer=answer)) for answer in answers]


def ended(tokens, chunks=2):
    answer = ChatAnswer()
    taken(answer, *[delta(content="ab")] * chunks, *([end(tokens)] if tokens else []))
    return answer


def test_a_broken_answer_is_counted_as_those_that_were_told():
    one_each = how_counted(records(*[ended(2)] * 5, ended(0)))
    assert not one_each.invalid
    assert one_each.notes[1].endswith("as in its other answers each chunk had one.")
    several = how_counted(records(*[ended(6)] * 5, ended(0)))
    assert "1 of 6 answers" in several.invalid[0]
    few = how_counted(records(*[ended(6)] * 99, ended(0)))
    assert not few.invalid
    assert few.notes[1].endswith("though it may have several.")


def test_answers_that_are_counted_need_no_words():
    told = ChatAnswer()
    taken(told, delta(None, {"completion_tokens": 5}, content="ab"), end(5))
    counting = how_counted([*records(told, ChatAnswer())])
    assert counting.notes == counting.invalid == ()


def test_reasoning_that_did_not_arrive_is_noted():
    answer = ChatAnswer()
    taken(answer, delta(content="ab"), end(54, reasoning_tokens=50))
    (_, note) = how_counted(records(answer)).notes
    assert "counts 50 tokens of reasoning that it did not stream" in note


def test_while_a_run_goes_on_readers_without_a_count_are_no_stalled_ones(ask, trace_of):
    """A chunk of four tokens would seem one, and every reader stalled."""
    seen = []

    async def main():
        behaviour = Behaviour(tokens_per_chunk=4, usage=False, gap_s=0.1)
        async with serve(behaviour) as (_, url):
            target = await find_target(url)
            options = ReplayOptions(api=Api.chat, known_lengths=True)
            trace = trace_of(ask(output=80, rate=40.0))
            return await replay(
                trace, target, options, observe=lambda snapshot, _: seen.append(snapshot)
            )

    asyncio.run(main())
    assert any(snapshot.uncounted for snapshot in seen)
    assert not any(snapshot.stalled for snapshot in seen)
