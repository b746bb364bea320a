"""Text that does not come out of the front end, seen chunk by chunk."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from tokenflow_sgl.engine.config import ATTRIBUTE, TokenFlowConfig
from tokenflow_sgl.engine.frontend.held_text import texts_of, watch_chat, watch_generate


class Manager:
    """SGLang's, as far as it is asked: it answers with `chunks`, and is slow to pass on news."""

    def __init__(self, chunks: list[dict[str, Any]], *, incremental: bool = False) -> None:
        self.chunks = chunks
        self.incremental_streaming_output = incremental
        self.server_args = SimpleNamespace(**{ATTRIBUTE: TokenFlowConfig()})
        self.model_update_lock = SimpleNamespace()
        self.lora_registry = SimpleNamespace()
        self.told: list[dict[str, float]] = []
        self.closed = False

    async def generate(self, _manager: Any, _obj: Any) -> Any:
        try:
            for chunk in self.chunks:
                yield chunk
                await asyncio.sleep(0)
        finally:
            self.closed = True

    def auto_create_handle_loop(self) -> None:
        """Needs nothing here."""

    async def set_internal_state_communicator(self, message: Any) -> list[Any]:
        await asyncio.sleep(0)
        self.told.append(message.server_args)
        return []


def chunk(tokens: int, text: str, *, rid: str = "a", finished: bool = False) -> dict[str, Any]:
    reason = {"type": "stop"} if finished else None
    meta = {"id": rid, "completion_tokens": tokens, "finish_reason": reason}
    return {"text": text, "meta_info": meta}


def told(manager: Manager, *, stream: bool = True) -> list[dict[str, float]]:
    """What the scheduler hears while a client reads everything."""

    async def read() -> None:
        obj = SimpleNamespace(stream=stream)
        got = [each async for each in watch_generate(manager.generate, manager, obj)]
        assert got == manager.chunks, "nothing is changed on the way"
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(read())
    assert manager.closed
    return manager.told


@pytest.mark.parametrize("incremental", [False, True])
def test_bytes_that_are_no_character_yet(incremental) -> None:
    texts = ["ab", "ab", "ab", "ab", "ab", "ab", "abX", "abXY"]
    if incremental:
        texts = ["ab", "", "", "", "", "", "X", "Y"]
    chunks = [chunk(2 + n, text) for n, text in enumerate(texts)]
    assert told(Manager(chunks, incremental=incremental)) == [
        {"tokenflow_passed_on:a": 2},
        {"tokenflow_passed_on:a": -1},
    ]


def test_three_tokens_are_not_worth_a_message() -> None:
    chunks = [chunk(1, "a"), chunk(2, "a"), chunk(3, "a"), chunk(4, "a"), chunk(5, "ab")]
    assert told(Manager(chunks)) == []


def test_of_an_answer_that_ends_nothing_is_said() -> None:
    chunks = [chunk(1, "a"), chunk(9, "a", finished=True)]
    assert told(Manager(chunks)) == []


def test_without_the_scheduler_or_a_stream_nothing_is_watched() -> None:
    chunks = [chunk(1, "a"), chunk(9, "a"), chunk(12, "ab")]
    stock = Manager(chunks)
    stock.server_args = SimpleNamespace()
    assert told(stock) == []
    assert told(Manager(chunks), stream=False) == []


def test_choices_of_one_request_are_told_apart() -> None:
    chunks = [chunk(1, "a"), chunk(1, "b", rid="b"), chunk(8, "a"), chunk(2, "bb", rid="b")]
    assert told(Manager(chunks)) == [{"tokenflow_passed_on:a": 1}]


def test_what_is_said_meanwhile_goes_in_one_message() -> None:
    chunks = [chunk(1, "a"), chunk(1, "b", rid="b"), chunk(6, "a"), chunk(7, "b", rid="b")]
    chunks += [chunk(7, "aa"), chunk(8, "bb", rid="b")]
    manager = Manager(chunks)

    async def slow(message: Any) -> list[Any]:
        for _ in range(20):
            await asyncio.sleep(0)
        manager.told.append(message.server_args)
        return []

    manager.set_internal_state_communicator = slow  # type: ignore[method-assign]

    async def read() -> None:
        obj = SimpleNamespace(stream=True)
        async for _ in watch_generate(manager.generate, manager, obj):
            pass
        for _ in range(60):
            await asyncio.sleep(0)

    asyncio.run(read())
    first, last = manager.told
    assert first == {"tokenflow_passed_on:a": 1}
    assert last == {"tokenflow_passed_on:a": -1, "tokenflow_passed_on:b": -1}


def event(**delta: Any) -> str:
    return f"data: {json.dumps({'id': 'a', 'choices': [{'index': 0, 'delta': delta}]})}\n\n"


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (event(role="assistant", content=""), []),
        (event(content="a"), ["a"]),
        (event(reasoning_content="a"), ["a"]),
        (event(reasoning_content="a", content="b"), ["a", "b"]),
        (event(content=None, tool_calls=[{"index": 0, "function": {"name": "f"}}]), ["f"]),
        (event(tool_calls=[{"function": {"name": "f", "arguments": "{"}}]), ["f", "{"]),
        (event(tool_calls=[{"function": {"name": None, "arguments": ""}}]), [""]),
        (event(tool_calls=[{"id": "x"}]), [""]),
        (event(tool_calls=[]), []),
        ('data: {"choices": [], "usage": {}}\n\n', []),
        ("data: [DONE]\n\n", []),
        ("event: sglext_ids\ndata: {}\n\n", []),
    ],
)
def test_what_the_client_of_a_chat_gets(sent, expected) -> None:
    assert texts_of(sent) == expected


def test_a_parser_keeps_the_beginning_of_a_tool_call() -> None:
    """Text comes from the engine all the while; the chat sends some of it only."""
    chunks = [chunk(n, "x" * n) for n in range(1, 13)]
    manager = Manager(chunks)
    obj = SimpleNamespace(stream=True)

    async def chat(_serving: Any, obj: Any) -> Any:
        yield event(role="assistant", content="")
        async for content in watch_generate(manager.generate, manager, obj):
            tokens = content["meta_info"]["completion_tokens"]
            if tokens < 3 or tokens > 9:
                yield event(content="x")

    async def read() -> None:
        serving = SimpleNamespace(tokenizer_manager=manager)
        async for _ in watch_chat(chat, serving, obj):
            pass
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(read())
    assert manager.told == [{"tokenflow_passed_on:a": 2}, {"tokenflow_passed_on:a": -1}]


class Letters:
    """A tokenizer whose tokens are letters."""

    def decode(self, ids: list[int], **_how: bool) -> str:
        return "".join(map(chr, ids))


@pytest.mark.parametrize("incremental", [False, True])
def test_a_parser_keeps_a_text_that_begins_in_the_middle_of_a_chunk(incremental) -> None:
    """Of the second chunk of twenty tokens half goes out, of the third nothing, then all of it."""
    parts = ["abcdefghijklmnopqrst", "0123456789<tool_call", "xxxxxxxxxxxxxxxxxxxx", "> was meant"]
    out = [parts[0], parts[1][:10], "", parts[1][10:] + parts[2] + parts[3]]
    chunks, whole = [], ""
    for part in parts:
        whole += part
        made = chunk(len(whole), part if incremental else whole)
        made["output_ids"] = [ord(letter) for letter in (part if incremental else whole)]
        chunks.append(made)
    manager = Manager(chunks, incremental=incremental)
    manager.tokenizer = Letters()  # type: ignore[attr-defined]

    async def chat(_serving: Any, obj: Any) -> Any:
        sending = iter(out)
        async for _ in watch_generate(manager.generate, manager, obj):
            if text := next(sending):
                yield event(content=text)
            for _ in range(5):
                await asyncio.sleep(0)

    async def read() -> None:
        obj = SimpleNamespace(stream=True, sampling_params={})
        async for _ in watch_chat(chat, SimpleNamespace(tokenizer_manager=manager), obj):
            pass
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(read())
    assert manager.told == [{"tokenflow_passed_on:a": 30}, {"tokenflow_passed_on:a": -1}]


def test_a_client_that_leaves_closes_the_stream() -> None:
    manager = Manager([chunk(n, "x" * n) for n in range(1, 13)])

    async def leave() -> None:
        reading = watch_generate(manager.generate, manager, SimpleNamespace(stream=True))
        await reading.__anext__()
        await reading.aclose()  # type: ignore[attr-defined]

    asyncio.run(leave())
    assert manager.closed
