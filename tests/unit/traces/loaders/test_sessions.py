"""What the loaders make of files with sessions: AIPerf's inputs, Bailian's chats, BurstGPT's."""

from __future__ import annotations

import json

import pytest

from tokenflow_sgl.lab.traces import PrefixBlock, TraceError, open_trace


def lines(*rows: dict) -> str:
    return "".join(json.dumps(row) + "\r\n" for row in rows)


def turn(session: str | None, new: int, out: int, **more: object) -> dict:
    named = {} if session is None else {"session_id": session}
    return {**named, "input_length": new, "output_length": out, **more}


# ---- AIPerf ---------------------------------------------------------------------------------


def test_later_turns_have_all_before_them_and_think_for_their_delay(write) -> None:
    path = write(
        "\ufeff"
        + lines(
            turn("a", 600, 40, timestamp=2000, hash_ids=[0, 1]),
            turn("a", 150, 20, delay=1500, hash_ids=[7]),
            turn(None, 10, 5, timestamp=500.0),
            turn("b", 100, 30, timestamp=1000),
            turn("a", 50, 10, delay=0),
        ),
        "a.jsonl",
    )
    trace = open_trace(f"aiperf:{path}")
    single, b, *a = trace.requests
    assert (single.session, single.arrival_s, single.prompt_tokens) == (None, 0.0, 10)
    assert (b.arrival_s, b.turn, b.session) == (0.5, 0, "s1")
    assert [each.prompt_tokens for each in a] == [600, 640 + 150, 810 + 50]
    assert [each.think_s for each in a] == [0.0, 1.5, 0.0]
    assert {each.session for each in a} == {"s2"}
    assert {each.prefix for each in a} == {(PrefixBlock(0, 512), PrefixBlock(1, 88))}
    assert trace.accounting.rows == trace.accounting.emitted == 5


def test_turns_with_times_of_their_own_think_for_the_gap_and_that_is_said(write) -> None:
    rows = turn("a", 5, 5, timestamp=0), turn("a", 5, 5, timestamp=4000)
    trace = open_trace(f"aiperf:{write(lines(*rows), 'a.jsonl')}")
    assert trace.requests[1].think_s == 4.0
    assert any("1 later turns have a timestamp and no delay" in note for note in trace.notes)


def test_without_times_arrivals_must_be_given(write) -> None:
    path = write(lines(turn("a", 5, 5), turn("a", 5, 5, delay=2)), "a.jsonl")
    with pytest.raises(TraceError, match=r"1 of 1 sessions .* have no timestamp; arrivals must"):
        open_trace(f"aiperf:{path}")
    trace = open_trace(f"aiperf:{path}?arrivals=poisson&rate=2")
    assert [each.think_s for each in trace.requests] == [0.0, 0.002]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (turn("a", 5, 5, delay=-1), "line 2, column delay: is -1; allowed is a number of at least"),
        (turn("a", 5, 5, timestamp=-1), "column timestamp: is -1; allowed"),
        (turn("a", 5, 5, timestamp=5), "is earlier than the turn of the session before it"),
        (turn("a", 1 << 40, 5, delay=1), "column input_length: is 1099511627776; allowed is a"),
        (turn("a", 2**31 - 1, 5, delay=1), "makes a session of more than 2147483647 tokens"),
        (turn(7, 5, 5), "column session_id: is 7; allowed is a string"),
        (
            {"session_id": "a", "text_input": "secret", "output_length": 5},
            "column input_length: the column is missing, and text_input has text; allowed are rows",
        ),
        ({"session_id": "a", "messages": ["secret"]}, "the column is missing, and messages has"),
        (turn("b", 5, 5, context_mode="secret"), "column context_mode: is a text of 6 characters"),
        (turn("b", 5, 5, context_mode=[1]), "column context_mode: is [1]; allowed is deltas_wi"),
        (
            turn("a", 5, 5, context_mode="deltas_with_responses"),
            "column context_mode: is a text of 21 characters; allowed is the same in all rows",
        ),
        (turn("b", 600, 5, timestamp=1, hash_ids=[1]), "holds 1 ids; a prompt of 600 tokens has 2"),
    ],
)
def test_what_is_wrong_in_a_row_is_said(write, row, problem) -> None:
    path = write(lines(turn("a", 5, 5, timestamp=10), row), "a.jsonl")
    with pytest.raises(TraceError) as caught:
        open_trace(f"aiperf:{path}")
    assert problem in str(caught.value)
    assert "secret" not in str(caught.value)


def test_rows_that_have_whole_prompts_or_answers_say_so(write) -> None:
    whole = {"context_mode": "message_array_with_responses"}
    canned = {"context_mode": "deltas_with_responses"}
    path = write(
        lines(
            turn("a", 600, 40, timestamp=0, hash_ids=[0, 1], **whole),
            turn("a", 700, 20, delay=5, hash_ids=[0, 2], **whole),
            turn("b", 100, 30, timestamp=1, **canned),
            turn("b", 50, 10, delay=5, **canned),
        ),
        "a.jsonl",
    )
    trace = open_trace(f"aiperf:{path}")
    assert [each.prompt_tokens for each in trace.requests] == [600, 700, 100, 150]
    assert [[block.id for block in each.prefix] for each in trace.requests[:2]] == [[0, 1], [0, 2]]
    assert any("context_mode" in note for note in trace.notes)


def test_a_block_that_was_of_another_length_ends_what_is_shared(write) -> None:
    rows = [(0, 655, [6, 7]), (9000, 672, [6, 7]), (20000, 655, [6, 7])]
    path = write(lines(*(turn(None, n, 9, timestamp=at, hash_ids=ids) for at, n, ids in rows)))
    trace = open_trace(f"aiperf:{path}")
    assert [[block.tokens for block in each.prefix] for each in trace.requests] == [
        [512, 143],
        [512],
        [512, 143],
    ]
    assert any("1 prompts have a block that stood for another" in note for note in trace.notes)


@pytest.mark.parametrize("text", ["", '{"session_id": "a", ', '{"session_id": NaN}', "[1]"])
def test_what_is_no_file_of_rows_is_refused(write, text) -> None:
    with pytest.raises(TraceError):
        open_trace(f"aiperf:{write(text, 'a.jsonl')}")


# ---- Mooncake -------------------------------------------------------------------------------


def test_mooncake_without_blocks_shares_nothing_and_says_so(write) -> None:
    rows = turn(None, 600, 5, timestamp=0), turn(None, 600, 5, timestamp=1000, hash_ids=[1, 2])
    trace = open_trace(f"mooncake:{write(lines(*rows), 'm.jsonl')}")
    assert [len(each.prefix) for each in trace.requests] == [0, 2]
    assert "1 rows have no hash_ids: their prompts share nothing." in trace.notes


def test_mooncake_with_blocks_of_another_size(write) -> None:
    path = write(lines(turn(None, 40, 5, timestamp=0, hash_ids=[1, 2, 3])), "m.jsonl")
    trace = open_trace(f"mooncake:{path}?blocks=16")
    assert [block.tokens for block in trace.requests[0].prefix] == [16, 16, 8]
    with pytest.raises(TraceError, match="blocks=TOKENS sets another size"):
        open_trace(f"mooncake:{path}")
    for size in ("0", "-1", "99999999"):
        with pytest.raises(TraceError, match=f"blocks is {size}; allowed is a number of tokens"):
            open_trace(f"mooncake:{path}?blocks={size}")


# ---- Bailian --------------------------------------------------------------------------------


def chat(number: object, parent: object, at: float, new: int = 40, **more: object) -> dict:
    ids = {"chat_id": number, "parent_chat_id": parent, "type": "text", "turn": 1}
    return {**ids, "timestamp": at, "input_length": new, "output_length": 9, **more}


def test_chats_become_sessions_in_seconds(write) -> None:
    rows = (
        chat(0, -1, 0.0, hash_ids=[1, 2, 3]),
        chat(1, 0, 61.5, 70, hash_ids=[1, 2, 4, 5, 6]),
        chat(2, -1, 62.5, 32, hash_ids=[7, 8, 9]),
        chat(3, 0, 70.0),
        chat(9, 5, 80.0),
    )
    trace = open_trace(f"bailian:{write(lines(*rows), 'b.jsonl')}")
    first, second, *others = trace.requests
    assert (first.session, first.turn, first.arrival_s) == ("s0", 0, 0.0)
    assert (second.session, second.turn, second.think_s) == ("s0", 1, 61.5)
    assert [block.id for block in second.prefix] == [1, 2, 4, 5]
    assert {block.tokens for block in second.prefix} == {16}
    assert [(each.arrival_s, each.turn) for each in others] == [(62.5, 0), (70.0, 0), (80.0, 0)]
    assert len(others[0].prefix) == 2
    notes = " ".join(trace.notes)
    assert "1 turns continue chats that are not in the file" in notes
    assert "1 turns continue a turn that another one continues" in notes


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([chat(0, -1, 0.0), chat(0, -1, 1.0)], "column chat_id: chat 0 is there twice"),
        ([chat(0, 0, 0.0)], "column parent_chat_id: chat 0 is its own parent"),
        ([chat(0, 1, 0.0), chat(1, 0, 1.0)], "chat 0 continues chat 1, which comes behind it"),
        ([chat(0, -1, 5.0), chat(1, 0, 1.0)], "is earlier than the turn that it continues"),
        ([chat(0, -1, -5.0)], "column timestamp: is -5.0; allowed"),
        ([chat(0, -1, 0.0, hash_ids=[1] * 5)], "a prompt of 40 tokens has at most 4 of 16 tokens"),
        ([chat(0, -1, 0.0, hash_ids=["x"])], "column hash_ids: is a text of 1 character"),
        ([chat("x", -1, 0.0)], "column chat_id: is a text of 1 character"),
        ([chat(0, -1, 0.0, 0)], "none of the 1 rows is a request"),
    ],
)
def test_what_is_wrong_in_a_chat_is_said(write, rows, problem) -> None:
    path = write(lines(*rows), "b.jsonl")
    with pytest.raises(TraceError) as caught:
        open_trace(f"bailian:{path}")
    assert problem in str(caught.value)


# ---- BurstGPT -------------------------------------------------------------------------------

HEAD = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
)


def test_requests_of_a_session_are_its_turns(write) -> None:
    rows = (
        "5,s-1,1.5,ChatGPT,472,18,490,Conversation log",
        "45,s-2,2.0,ChatGPT,1087,230,1317,Conversation log",
        "118,s-1,9.1,GPT-4,417,276,693,Conversation log",
        "119,s-2,,ChatGPT,3,0,3,Conversation log",
        "185,,,ChatGPT,1360,647,2007,API log",
    )
    trace = open_trace(f"burstgpt:{write(chr(10).join((HEAD, *rows)))}")
    first, second, third, last = trace.requests
    assert (first.session, second.session, second.turn) == ("s0", "s0", 1)
    assert second.think_s == 118 - 6.5
    assert (third.arrival_s, last.arrival_s, last.session) == (40.0, 180.0, None)
    assert sum(trace.accounting.dropped.values()) == 1
    assert "s-1" not in repr(trace)


def test_a_bad_elapsed_time_is_refused(write) -> None:
    text = f"{HEAD}\n5,s-1,-2,ChatGPT,4,1,5,Conversation log\n"
    with pytest.raises(TraceError, match="column Elapsed time: is '-2'; allowed is a number"):
        open_trace(f"burstgpt:{write(text)}")


def test_without_sessions_it_is_as_before(write) -> None:
    text = f"{HEAD}\n5,,,ChatGPT,4,1,5,Conversation log\n9,,,ChatGPT,4,1,5,API log\n"
    trace = open_trace(f"burstgpt:{write(text)}")
    assert [each.session for each in trace.requests] == [None, None]
    assert not any("session" in note for note in trace.notes)
